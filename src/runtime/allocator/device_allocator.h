// SPDX-License-Identifier: Apache-2.0
// The caching allocator of one device. Not for other layers.
//
// The lock is never held while the driver, a pool filter or a gatherer of contexts is called: each may wait for a thread,
// or a stream callback, that frees memory here. Slow calls work in sections under the lock and open it in between.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/spin_lock.h"
#include "runtime/allocator/block.h"
#include "runtime/allocator/counters.h"
#include "runtime/allocator/history.h"
#include "runtime/stream.h"

namespace torch_fl::runtime {

// Hidden: calls inside the library need no table.
class [[gnu::visibility("hidden")]] DeviceAllocator {
 public:
  DeviceAllocator(int device, const AllocatorConfig& config);

  void* Allocate(size_t size, const char* op);
  // `slot` holds, or held when the caller looked, the entry of a live block at `pointer`.
  void Free(void* pointer, PageMap::Slot* slot) noexcept;
  void RecordStream(PageMap::Slot* slot, const void* pointer, Stream* stream);
  bool Find(const void* pointer, AllocationInfo* info, bool* live) noexcept;

  // Waits for streams that still use freed blocks, then gives free segments back to the driver. Without `id`: of the shared
  // pool and of private pools that nobody retains; with it, of that pool only.
  void EmptyCache(std::optional<MemoryPoolId> id);

  MemoryStats Stats();
  void ResetPeakStats();
  void ResetAccumulatedStats();
  void Configure(const AllocatorConfig& config);
  void SetFraction(double fraction);
  double Fraction();
  uint64_t LeakedBlocks();

  void BeginPool(MemoryPoolId id, std::function<bool(Stream*)> filter);
  void EndPool(MemoryPoolId id);
  void RetainPool(MemoryPoolId id);
  void ReleasePool(MemoryPoolId id);
  int PoolUses(MemoryPoolId id);

  void SetHistory(const HistorySettings& settings);
  void Snapshot(const std::optional<MemoryPoolId>& pool, MemorySnapshot* out);

 private:
  // What calls must look at before they take the short way; bits of attention_.
  enum : uint32_t { kPoison = 1, kHistory = 2, kFilters = 4, kPending = 8, kRounding = 16 };
  static constexpr uint32_t kFreeAttention = kPoison | kHistory;

  // The lock, with the counters folded while it is held. Contexts that were displaced meanwhile die after it: their
  // deleters are foreign code.
  class Section {
   public:
    explicit Section(DeviceAllocator& allocator) : allocator_(allocator) { Lock(); }
    ~Section() {
      if (held_) Unlock();
    }
    Section(const Section&) = delete;
    Section& operator=(const Section&) = delete;
    void Lock() noexcept {
      allocator_.lock_.lock();
      allocator_.counters_.Fold();
      held_ = true;
    }
    void Unlock() noexcept {
      held_ = false;
      allocator_.counters_.Arm();
      allocator_.lock_.unlock();
    }
    void Discard(MemoryContext&& context) noexcept {
      if (context == nullptr) return;
      try {
        displaced_.push_back(std::move(context));
      } catch (const std::bad_alloc&) {
        context.reset();  // here and now, then
      }
    }

   private:
    DeviceAllocator& allocator_;
    bool held_ = false;
    std::vector<MemoryContext> displaced_;
  };

  struct Request {
    size_t size = 0;
    size_t rounded = 0;
    const char* op = nullptr;
    StreamPool* pool = nullptr;
    MemoryContext context;

    PoolClass pool_class() const noexcept { return ClassOf(rounded); }
  };
  struct Use {  // of a pending block, by one stream
    uint64_t id = 0;
    Event* event = nullptr;
    Block* block = nullptr;
  };
  struct Filter {
    MemoryPoolId id;
    std::shared_ptr<const std::function<bool(Stream*)>> accepts;
  };
  using Released = std::vector<std::pair<void*, size_t>>;

  MemoryStats& stats() noexcept { return counters_.stats(); }

  // device_allocator.cpp
  void* AllocateSlow(size_t size, const char* op, Stream* stream);
  void HandOut(Block* block, size_t size, const char* op) noexcept;
  void FreeSlow(void* pointer, PageMap::Slot* slot) noexcept;
  void CountAllocation(const Block& block) noexcept;
  void CountFree(const Block& block) noexcept;
  void Poison(const Block& block, uint8_t value, Stream* stream);
  void PoisonFreed(const Block& block) noexcept;
  MemoryContext Gather(HistoryContext least) noexcept;
  void Trace(Section& section, TraceAction action, const void* address, size_t size, const StreamPool* pool,
             const MemoryContext& context) noexcept;

  // free_lists.cpp: with the lock held
  Block* TakeFree(Section& section, const Request& request);
  void RemoveFree(Block* block) noexcept;
  Block* Carve(Block* block, const Request& request);
  void FinishFree(Section& section, Block* block);
  void Insert(Section& section, Block* block);
  void Absorb(Section& section, Block* block, Block* neighbour);
  void FlushQuick(Section& section, StreamPool& pool);
  void FlushAll(Section& section);
  void CountInactive(const Block& block, int64_t sign) noexcept;

  // grow.cpp: entered and left with the lock held, open in between
  Block* Grow(Section& section, const Request& request);
  Block* NewSegment(Section& section, const Request& request, bool tight);
  Block* NewOrdinarySegment(Section& section, const Request& request, size_t bytes);
  bool Reserve(size_t bytes) noexcept;
  bool ReleaseOversize(Section& section, const Request& request);
  void CollectGarbage(Section& section);
  bool ReleaseFree(Section& section, const std::optional<MemoryPoolId>& id);
  void Retire(Section& section, Block* block, Released* released);  // a free block that is all of its segment
  void GiveBack(Section& section, Released released);
  bool WaitForOtherReleases(Section& section, uint64_t known);
  [[noreturn]] void ThrowOutOfMemory(Section& section, const Request& request);

  // expandable.cpp: entered and left with the lock held, open in between
  enum class Growth { kDone, kFull, kNotHere };
  Growth GrowArea(Section& section, const Request& request, bool tight, Block** out);
  struct Extension {
    std::vector<size_t> sizes;  // of the mappings
    size_t bytes = 0;  // their sum
    PageMap::Slot* slot = nullptr;  // of the first new byte
  };
  Growth Extend(Segment& area, size_t missing, bool tight, Extension* out);  // without the lock
  void Append(Section& section, Segment& area, Block* tail, const Extension& extension);
  Segment* ShrinkableArea(const std::optional<MemoryPoolId>& id);
  void ShrinkArea(Section& section, Segment* area);

  // pending.cpp: entered and left without the lock
  void MarkUses(Block* block, const std::vector<Stream*>& streams) noexcept;
  void PollUses();
  void AwaitUses();
  void FinishUses(const std::map<Stream*, uint64_t>& done);

  // pools.cpp
  MemoryPoolId ChoosePool();
  PoolGroup* GroupOf(MemoryPoolId id);
  StreamPool* PoolOf(PoolGroup* group, int64_t stream_id);
  bool MayRelease(const PoolGroup& group, const std::optional<MemoryPoolId>& id) const noexcept;
  void DropEmptyGroups();
  template <class Visitor>
  void VisitPools(const Visitor& visit) {
    for (const auto& pool : shared_.by_stream) {
      if (pool != nullptr) visit(*pool);
    }
    for (const auto& [id, group] : groups_) {
      for (const auto& pool : group->by_stream) {
        if (pool != nullptr) visit(*pool);
      }
    }
  }

  const int device_;
  const uint64_t total_bytes_;
  const bool poison_;
  SpinLock lock_;
  std::atomic<uint32_t> attention_{0};  // written under the lock
  Counters counters_;
  PoolGroup shared_{MemoryPoolId{}};

  AllocatorConfig config_;
  double fraction_ = 1;
  uint64_t cap_ = UINT64_MAX;  // bytes; no limit but the device's own while the fraction is 1
  uint64_t in_flight_ = 0;  // bytes being asked for from the driver, or being given back
  Released refused_;  // segments that the driver did not take back, counted in in_flight_
  int releasing_ = 0;  // threads that are giving memory back
  uint64_t releases_ = 0;  // ... that did so
  std::atomic<int> growing_{0};  // requests that hold on to their pool while the lock is open; raised under the lock
  uint64_t leaked_ = 0;  // blocks whose users could not be waited for

  BlockStore blocks_;
  std::map<uintptr_t, std::unique_ptr<Segment>> segments_;  // by base address
  std::map<MemoryPoolId, std::unique_ptr<PoolGroup>> groups_;
  std::vector<Filter> filters_;
  std::map<Stream*, std::deque<Use>> uses_;  // oldest first
  uint64_t next_use_ = 1;
  History history_;
};

}  // namespace torch_fl::runtime
