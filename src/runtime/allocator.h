// SPDX-License-Identifier: Apache-2.0
// The caching device allocator as callers see it beyond Allocate, Free and Owns (runtime.h): statistics, limits, private
// pools, history and snapshots. Names and numbers follow torch's GPU allocator, so that its tools read them.
//
// Threads: any. Nothing here takes the GIL. Throws torch_fl::Error unless noexcept.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace torch_fl::runtime {

class Stream;

// ---- Statistics

struct Stat {
  int64_t current = 0;
  int64_t peak = 0;  // since the last ResetPeakStats
  int64_t allocated = 0;  // ever increased by, since the last ResetAccumulatedStats
  int64_t freed = 0;  // ever decreased by
};
enum PoolClass : size_t { kAllPools, kSmallPool, kLargePool, kPoolClasses };  // small: requests up to 1 MiB
using StatArray = std::array<Stat, kPoolClasses>;

struct MemoryStats {
  StatArray allocation;  // blocks that callers hold
  StatArray segment;  // allocations held from the driver
  StatArray active;  // blocks held by callers, or freed but still used by another stream
  StatArray inactive_split;  // free blocks that share a segment with others
  StatArray allocated_bytes;  // of `allocation`, rounded sizes
  StatArray reserved_bytes;  // of `segment`
  StatArray active_bytes;
  StatArray inactive_split_bytes;
  StatArray requested_bytes;  // what callers asked for
  int64_t num_alloc_retries = 0;  // driver refused, caches were given back, tried again
  int64_t num_ooms = 0;
  int64_t num_sync_all_streams = 0;
  int64_t num_device_alloc = 0;  // memory_alloc and memory_map calls that succeeded
  int64_t num_device_free = 0;
  int64_t max_split_size = 0;
  Stat oversize_allocations;  // blocks larger than max_split_size
  Stat oversize_segments;
};

MemoryStats GetMemoryStats(int device);
void ResetPeakStats(int device);  // peaks start again from the present values; live numbers stay
void ResetAccumulatedStats(int device);

// ---- Settings and limits

struct AllocatorConfig {  // one process-wide setting; torch's PYTORCH_ALLOC_CONF fills it (docs/memory.md)
  size_t max_split_size = std::numeric_limits<size_t>::max();  // larger blocks are neither split nor shared
  size_t max_non_split_rounding_size = size_t{20} << 20;  // how much larger than asked an unsplit block may be
  size_t large_segment_size = size_t{20} << 20;
  double garbage_collection_threshold = 0;  // of the cap; 0: off
  bool expandable_segments = false;  // ignored with one warning where the driver cannot map memory
  std::vector<size_t> roundup_power2_divisions;  // 16 entries: 1 MiB, 2 MiB, ... 32 GiB and more; empty or 0: off
};
void SetAllocatorConfig(const AllocatorConfig& config);
AllocatorConfig GetAllocatorConfig();

// The most this process may hold from the driver, as a fraction of the device's memory, 0 < fraction <= 1. Beyond it
// Allocate behaves as if the device were full.
void SetMemoryFraction(int device, double fraction);
double GetMemoryFraction(int device);

// ---- Private pools: memory that only chosen calls allocate from, for graphs and for user pools

using MemoryPoolId = std::pair<uint64_t, uint64_t>;  // {0, 0}: the device's shared pool
// Allocations on `device` for whose current stream `filter` says yes come from pool `id`, which is made if needed, until
// EndAllocateToPool. The latest matching begin wins. `filter` is called under no lock and may not allocate.
void BeginAllocateToPool(int device, MemoryPoolId id, std::function<bool(Stream*)> filter);
void EndAllocateToPool(int device, MemoryPoolId id);
// Keeps the pool, and its cached memory, until as many ReleasePool calls follow.
void RetainPool(int device, MemoryPoolId id);
// The last release lets EmptyCache give the pool's memory back once its blocks are free.
void ReleasePool(int device, MemoryPoolId id);
int PoolUseCount(int device, MemoryPoolId id);
void EmptyCache(MemoryPoolId id);  // of this pool only, on every device

// ---- History and snapshots

using MemoryContext = std::shared_ptr<void>;  // where an allocation was made; opaque here (a stack trace in torch)
using GatherContext = MemoryContext (*)();  // may be called with the GIL held; never under the allocator's lock

enum class HistoryContext {
  kNever,
  kState,
  kAlloc,
  kAll
};  // contexts of: nothing, live blocks, also trace, also frees
enum class TraceAction {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap,
  kSnapshot,
  kOom
};

struct TraceEntry {
  TraceAction action = TraceAction::kAlloc;
  uint64_t address = 0;  // for kOom: free bytes of the device
  size_t size = 0;
  int64_t stream = 0;  // id
  MemoryPoolId pool{};
  int64_t time_us = 0;  // since the epoch
  MemoryContext context;
};
enum class BlockState { kInactive, kActiveAllocated, kActivePendingFree };
struct BlockSnapshot {
  uint64_t address = 0;
  size_t size = 0;
  size_t requested_size = 0;
  BlockState state = BlockState::kInactive;
  MemoryContext context;
};
struct SegmentSnapshot {
  int device = 0;
  uint64_t address = 0;
  size_t total_size = 0;
  size_t requested_size = 0;
  size_t allocated_size = 0;
  size_t active_size = 0;
  int64_t stream = 0;  // id
  bool is_large = false;
  bool is_expandable = false;
  MemoryPoolId pool{};
  MemoryContext context;
  std::vector<BlockSnapshot> blocks;  // in address order, without gaps
};
struct MemorySnapshot {
  std::vector<SegmentSnapshot> segments;
  std::vector<std::vector<TraceEntry>> traces;  // by device, oldest first
};

// Starts (max_entries > 0) or stops (0) the ring of trace entries, on every device. `gather` may be NULL.
void RecordMemoryHistory(size_t max_entries, HistoryContext when, GatherContext gather);
bool MemoryHistoryEnabled() noexcept;
MemorySnapshot TakeMemorySnapshot(std::optional<MemoryPoolId> pool = std::nullopt);

}  // namespace torch_fl::runtime
