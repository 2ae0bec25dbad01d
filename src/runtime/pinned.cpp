// SPDX-License-Identifier: Apache-2.0
// Pinned blocks by powers of two. A freed block whose uses are not over waits in a queue that every allocation looks at.
#include "runtime/pinned.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/allocator/counters.h"
#include "runtime/allocator/event_cache.h"
#include "runtime/stream.h"

namespace torch_fl::runtime {
namespace {

constexpr size_t kSmallest = 512;
constexpr size_t kLargest = size_t{1} << 46;
constexpr size_t kBuckets = 64;
constexpr size_t kLook = 8;  // after so many blocks that still wait, the younger ones are not asked for

using Clock = std::chrono::steady_clock;

int64_t MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
}

struct HostBlock {
  void* base = nullptr;
  size_t size = 0;
  bool live = false;
  std::vector<Stream*> uses;
};

// Never held while the driver is called. The driver's table does not change, so reading it needs no lock.
struct HostPool {
  std::mutex mutex;
  std::map<uintptr_t, std::unique_ptr<HostBlock>> blocks;  // by address: live, free and waiting ones
  std::array<std::vector<HostBlock*>, kBuckets> free;  // index: log2 of the size
  std::deque<std::pair<std::vector<Event*>, HostBlock*>> waiting;
  HostMemoryStats stats;

  HostBlock* Find(const void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const auto after = blocks.upper_bound(address);
    if (after == blocks.begin()) return nullptr;
    HostBlock* block = std::prev(after)->second.get();
    return block->live && address - reinterpret_cast<uintptr_t>(block->base) < block->size ? block : nullptr;
  }
  void PutFree(HostBlock* block) { free[static_cast<size_t>(std::countr_zero(block->size))].push_back(block); }
};

HostPool& ThePool() {
  static auto* const pool = new HostPool;  // leaked: storages outlive static destructors
  return *pool;
}

bool Done(const std::vector<Event*>& events, bool wait) {
  for (Event* event : events) {
    if (wait) {
      SynchronizeEvent(event);
    } else if (!QueryEvent(event)) {
      return false;
    }
  }
  return true;
}

// Blocks whose uses are over become free. Entries leave the queue while they are looked at, so that no lock is held.
void TakeBackWaiting(HostPool& pool, bool wait) {
  std::deque<std::pair<std::vector<Event*>, HostBlock*>> looking;
  {
    const std::lock_guard lock(pool.mutex);
    if (pool.waiting.empty()) return;
    looking.swap(pool.waiting);
  }
  std::deque<std::pair<std::vector<Event*>, HostBlock*>> kept;
  std::vector<std::pair<std::vector<Event*>, HostBlock*>> done;
  std::exception_ptr failure;
  for (auto& entry : looking) {
    bool over = false;
    try {
      over = failure == nullptr && kept.size() < kLook && Done(entry.first, wait);
    } catch (...) {
      failure = std::current_exception();
    }
    if (over) {
      done.push_back(std::move(entry));
    } else {
      kept.push_back(std::move(entry));
    }
  }
  {
    const std::lock_guard lock(pool.mutex);
    for (const auto& [events, block] : done) pool.PutFree(block);
    pool.waiting.insert(pool.waiting.begin(), std::make_move_iterator(kept.begin()),
                        std::make_move_iterator(kept.end()));
  }
  for (const auto& [events, block] : done) {
    for (Event* event : events) ReturnEvent(event);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void ReleaseFree(HostPool& pool) {
  std::vector<std::unique_ptr<HostBlock>> released;
  {
    const std::lock_guard lock(pool.mutex);
    for (std::vector<HostBlock*>& bucket : pool.free) {
      for (HostBlock* block : bucket) {
        const auto found = pool.blocks.find(reinterpret_cast<uintptr_t>(block->base));
        released.push_back(std::move(found->second));
        pool.blocks.erase(found);
      }
      bucket.clear();
    }
    for (const auto& block : released) {
      Lower(pool.stats.segment, 1);
      Lower(pool.stats.reserved_bytes, static_cast<int64_t>(block->size));
    }
  }
  const auto start = Clock::now();
  flagos_status_t failure = FLAGOS_OK;
  std::vector<std::unique_ptr<HostBlock>> refused;
  for (auto& block : released) {
    const flagos_status_t status = Driver().host_free(block->base);
    if (status == FLAGOS_OK) continue;
    failure = status;
    refused.push_back(std::move(block));
  }
  const int64_t spent = MicrosecondsSince(start);
  {
    const std::lock_guard lock(pool.mutex);
    pool.stats.num_host_free += static_cast<int64_t>(released.size() - refused.size());
    pool.stats.host_free_us += spent;
    // What the driver did not take back is still ours to use, and to give back next time.
    for (auto& block : refused) {
      Raise(pool.stats.segment, 1);
      Raise(pool.stats.reserved_bytes, static_cast<int64_t>(block->size));
      HostBlock* const raw = block.get();
      pool.blocks.emplace(reinterpret_cast<uintptr_t>(raw->base), std::move(block));
      pool.PutFree(raw);
    }
  }
  CheckStatus(failure, "host_free", -1);
}

// The block is live when it is returned.
void* TakeFree(HostPool& pool, size_t size) {
  const std::lock_guard lock(pool.mutex);
  std::vector<HostBlock*>& bucket = pool.free[static_cast<size_t>(std::countr_zero(size))];
  if (bucket.empty()) return nullptr;
  HostBlock* block = bucket.back();
  bucket.pop_back();
  block->live = true;
  Raise(pool.stats.allocation, 1);
  Raise(pool.stats.allocated_bytes, static_cast<int64_t>(size));
  return block->base;
}

// FLAGOS_OUT_OF_MEMORY is returned, other failures are thrown.
flagos_status_t NewBlock(HostPool& pool, size_t size, void** out) {
  auto block = std::make_unique<HostBlock>();
  const auto start = Clock::now();
  const flagos_status_t status = Driver().host_alloc(size, &block->base);
  if (status == FLAGOS_OUT_OF_MEMORY) return status;
  CheckStatus(status, "host_alloc", -1);
  const int64_t spent = MicrosecondsSince(start);
  block->size = size;
  block->live = true;
  *out = block->base;
  const std::lock_guard lock(pool.mutex);
  ++pool.stats.num_host_alloc;
  pool.stats.host_alloc_us += spent;
  Raise(pool.stats.segment, 1);
  Raise(pool.stats.reserved_bytes, static_cast<int64_t>(size));
  Raise(pool.stats.allocation, 1);
  Raise(pool.stats.allocated_bytes, static_cast<int64_t>(size));
  pool.blocks.emplace(reinterpret_cast<uintptr_t>(*out), std::move(block));
  return FLAGOS_OK;
}

// False when it cannot be known that the stream is done with the block: it is never handed out again.
bool Guard(Stream* stream, std::vector<Event*>* events) noexcept {
  Event* event = nullptr;
  try {
    event = MarkStream(stream);
    if (event != nullptr) events->push_back(event);
    return true;
  } catch (...) {
    if (event != nullptr) ReturnEvent(event);
  }
  try {
    stream->Synchronize();
    return true;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torch_fl: a pinned block is never used again, its stream cannot be waited for: %s\n",
                 error.what());
    return false;
  }
}

template <class Visitor>
void VisitStats(const Visitor& visit) {
  HostPool& pool = ThePool();
  const std::lock_guard lock(pool.mutex);
  HostMemoryStats& s = pool.stats;
  for (Stat* stat : {&s.allocation, &s.allocated_bytes, &s.segment, &s.reserved_bytes}) visit(*stat);
}

}  // namespace

bool HostMemoryAvailable() { return Driver().host_alloc != nullptr && Driver().host_free != nullptr; }

void* HostAllocate(size_t size) {
  CheckNotForked("pin_memory");
  if (!HostMemoryAvailable()) {
    throw Error(FLAGOS_UNSUPPORTED, "pin_memory: driver " + GetDriverInfo().name +
                                        " has no page-locked memory; use ordinary memory, copies from it are staged");
  }
  if (size == 0) return nullptr;
  HostPool& pool = ThePool();
  const auto refuse = [&]() -> Error {
    return {FLAGOS_OUT_OF_MEMORY, "pin_memory: no page-locked memory for " + std::to_string(size) +
                                      " bytes, after giving the cached blocks back; free some, or use pageable memory"};
  };
  if (size > kLargest) throw refuse();
  const size_t rounded = std::bit_ceil(std::max(size, kSmallest));
  TakeBackWaiting(pool, /*wait=*/false);
  if (void* cached = TakeFree(pool, rounded)) return cached;
  void* fresh = nullptr;
  if (NewBlock(pool, rounded, &fresh) == FLAGOS_OK) return fresh;
  TakeBackWaiting(pool, /*wait=*/true);
  if (void* cached = TakeFree(pool, rounded)) return cached;
  ReleaseFree(pool);
  if (NewBlock(pool, rounded, &fresh) == FLAGOS_OK) return fresh;
  throw refuse();
}

void HostFree(void* pointer) noexcept {
  if (pointer == nullptr || Forked()) return;
  HostPool& pool = ThePool();
  std::vector<Stream*> uses;
  HostBlock* block = nullptr;
  {
    const std::lock_guard lock(pool.mutex);
    block = pool.Find(pointer);
    if (block == nullptr || block->base != pointer) {
      std::fprintf(stderr, "torch_fl: HostFree(%p): not the address of a live pinned block; ignored\n", pointer);
      return;
    }
    block->live = false;
    Lower(pool.stats.allocation, 1);
    Lower(pool.stats.allocated_bytes, static_cast<int64_t>(block->size));
    uses.swap(block->uses);
    if (uses.empty()) return pool.PutFree(block);
  }
  // At exit the driver may be gone: what streams use stays as it is for the rest of the process.
  if (Exiting()) return;
  std::vector<Event*> events;
  bool known = true;
  for (Stream* stream : uses) known = Guard(stream, &events) && known;
  if (!known) return;
  const std::lock_guard lock(pool.mutex);
  if (events.empty()) return pool.PutFree(block);
  pool.waiting.emplace_back(std::move(events), block);
}

bool HostRecordStream(const void* pointer, Stream* stream) {
  CheckNotForked("pin_memory");
  HostPool& pool = ThePool();
  const std::lock_guard lock(pool.mutex);
  HostBlock* block = pool.Find(pointer);
  if (block == nullptr) return false;
  if (std::find(block->uses.begin(), block->uses.end(), stream) == block->uses.end()) block->uses.push_back(stream);
  return true;
}

bool IsPinned(const void* pointer) noexcept {
  if (pointer == nullptr || Forked()) return false;
  try {
    const flagos_driver_v1_t& driver = Driver();
    if (driver.pointer_info != nullptr) {
      flagos_pointer_info_t info{};
      info.struct_size = sizeof info;
      return driver.pointer_info(pointer, &info) == FLAGOS_OK && info.space == FLAGOS_SPACE_PINNED;
    }
    HostPool& pool = ThePool();
    const std::lock_guard lock(pool.mutex);
    return pool.Find(pointer) != nullptr;
  } catch (const std::exception&) {  // no driver, so nothing of it
    return false;
  }
}

void HostEmptyCache() {
  CheckNotForked("empty_cache");
  HostPool& pool = ThePool();
  TakeBackWaiting(pool, /*wait=*/true);
  ReleaseFree(pool);
}

HostMemoryStats GetHostMemoryStats() {
  CheckNotForked("host_memory_stats");
  HostPool& pool = ThePool();
  const std::lock_guard lock(pool.mutex);
  return pool.stats;
}

void ResetHostPeakStats() {
  CheckNotForked("reset_peak_host_memory_stats");
  VisitStats([](Stat& stat) { stat.peak = stat.current; });
}

void ResetHostAccumulatedStats() {
  CheckNotForked("reset_accumulated_host_memory_stats");
  VisitStats([](Stat& stat) { stat.allocated = stat.freed = 0; });
  HostPool& pool = ThePool();
  const std::lock_guard lock(pool.mutex);
  pool.stats.num_host_alloc = pool.stats.num_host_free = 0;
  pool.stats.host_alloc_us = pool.stats.host_free_us = 0;
}

}  // namespace torch_fl::runtime
