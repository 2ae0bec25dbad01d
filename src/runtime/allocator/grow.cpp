// SPDX-License-Identifier: Apache-2.0
// Memory from the driver and back. Everything here is entered and left with the lock held and opens it for the driver.
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <string>

#include "base/options.h"
#include "runtime/allocator/device_allocator.h"

namespace torch_fl::runtime {
namespace {

// What other threads' giving back gets before an allocation fails for want of that memory.
constexpr int kReleaseWaitMs = 2000;
constexpr int kMaxRounds = 4;

// NULL when the device is full.
void* DriverAllocate(int device, size_t bytes) {
  MarkContext(device);
  void* base = nullptr;
  const flagos_status_t status = Driver().memory_alloc(device, bytes, &base);
  if (status == FLAGOS_OUT_OF_MEMORY) return nullptr;
  CheckStatus(status, "memory_alloc", device);
  const auto address = reinterpret_cast<uint64_t>(base);
  if (base == nullptr || address % 16 != 0 || (address + bytes) >> PageMap::kAddressBits != 0) {
    Driver().memory_free(device, base);
    throw Error(FLAGOS_INVALID_VALUE, "memory_alloc on device " + std::to_string(device) + " gave address " +
                                          std::to_string(address) +
                                          ": the allocator needs multiples of 16 below 2^48 and not NULL");
  }
  return base;
}

}  // namespace

// Throws when every way to get memory failed.
Block* DeviceAllocator::Grow(Section& section, const Request& request) {
  struct Growing {  // keeps the request's pool
    explicit Growing(std::atomic<int>& count) : count_(count) { ++count_; }
    ~Growing() { --count_; }
    std::atomic<int>& count_;
  } const growing(growing_);

  CollectGarbage(section);
  if (Block* block = NewSegment(section, request, /*tight=*/false)) return block;
  if (ReleaseOversize(section, request)) {
    if (Block* block = NewSegment(section, request, /*tight=*/false)) return block;
  }
  for (int round = 0; round < kMaxRounds; ++round) {
    ++stats().num_alloc_retries;
    section.Unlock();
    AwaitUses();
    section.Lock();
    if (Block* block = TakeFree(section, request)) return block;
    ReleaseFree(section, std::nullopt);
    if (Block* block = TakeFree(section, request)) return block;
    const uint64_t releases = releases_;
    if (Block* block = NewSegment(section, request, /*tight=*/false)) return block;
    // The last bytes of a device are worth a segment without room for others.
    if (Block* block = NewSegment(section, request, /*tight=*/true)) return block;
    if (!WaitForOtherReleases(section, releases)) break;
  }
  ThrowOutOfMemory(section, request);
}

// The request's block on fresh memory; NULL when there is none, or the cap forbids it.
Block* DeviceAllocator::NewSegment(Section& section, const Request& request, bool tight) {
  if (config_.expandable_segments) {
    Block* block = nullptr;
    switch (GrowArea(section, request, tight, &block)) {
      case Growth::kDone:
        return block;
      case Growth::kFull:
        return nullptr;
      case Growth::kNotHere:
        break;
    }
  }
  const size_t usual = SegmentSize(request.rounded, config_);
  if (tight && request.rounded == usual) return nullptr;  // was tried
  return NewOrdinarySegment(section, request, tight ? request.rounded : usual);
}

bool DeviceAllocator::Reserve(size_t bytes) noexcept {
  const uint64_t held = static_cast<uint64_t>(stats().reserved_bytes[kAllPools].current) + in_flight_;
  if (held > cap_ || bytes > cap_ - held) return false;
  in_flight_ += bytes;
  return true;
}

Block* DeviceAllocator::NewOrdinarySegment(Section& section, const Request& request, size_t bytes) {
  auto segment = std::make_unique<Segment>();
  Block* const block = blocks_.Take();
  if (!Reserve(bytes)) {
    blocks_.Return(block);
    return nullptr;
  }
  void* base = nullptr;
  PageMap::Slot* slot = nullptr;
  std::exception_ptr failure;
  section.Unlock();
  try {
    base = DriverAllocate(device_, bytes);
    if (base != nullptr) slot = g_page_map.Make(base);
  } catch (...) {
    failure = std::current_exception();
    if (base != nullptr) Driver().memory_free(device_, base);
  }
  section.Lock();
  in_flight_ -= bytes;
  if (slot == nullptr) {
    blocks_.Return(block);
    if (failure == nullptr) return nullptr;
    section.Unlock();
    std::rethrow_exception(failure);
  }
  segment->base = base;
  segment->bytes = bytes;
  segment->pool_class = request.pool_class();
  segment->pool = request.pool;
  segment->first = segment->last = block;
  segment->context = request.context;
  block->base = base;
  block->slot = slot;
  block->size = bytes;
  block->number = 0;
  block->pool = request.pool;
  block->segment = segment.get();
  MemoryStats& s = stats();
  Raise(s.segment, segment->pool_class, 1);
  Raise(s.reserved_bytes, segment->pool_class, static_cast<int64_t>(bytes));
  if (bytes >= config_.max_split_size) Raise(s.oversize_segments, 1);
  ++s.num_device_alloc;
  Trace(section, TraceAction::kSegmentAlloc, base, bytes, request.pool, request.context);
  segments_.emplace(reinterpret_cast<uintptr_t>(base), std::move(segment));
  return Carve(block, request);
}

// Takes a free block that is all of its segment out of the books; the caller gives the memory back.
void DeviceAllocator::Retire(Section& section, Block* block, Released* released) {
  Segment* const segment = block->segment;
  released->emplace_back(segment->base, segment->bytes);
  RemoveFree(block);
  MemoryStats& s = stats();
  Lower(s.segment, segment->pool_class, 1);
  Lower(s.reserved_bytes, segment->pool_class, static_cast<int64_t>(segment->bytes));
  if (segment->bytes >= config_.max_split_size) Lower(s.oversize_segments, 1);
  ++s.num_device_free;
  Trace(section, TraceAction::kSegmentFree, segment->base, segment->bytes, segment->pool, segment->context);
  section.Discard(std::exchange(segment->context, nullptr));
  blocks_.Return(block);
  segments_.erase(reinterpret_cast<uintptr_t>(segment->base));
}

void DeviceAllocator::GiveBack(Section& section, Released released) {
  // What the driver refused to take back before is offered again.
  released.insert(released.end(), refused_.begin(), refused_.end());
  for (const auto& [base, size] : refused_) in_flight_ -= size;
  refused_.clear();
  if (released.empty()) return;
  size_t bytes = 0;
  for (const auto& [base, size] : released) bytes += size;
  in_flight_ += bytes;
  ++releasing_;
  section.Unlock();
  flagos_status_t failure = FLAGOS_OK;
  Released refused;
  for (const auto& [base, size] : released) {
    const flagos_status_t status = Driver().memory_free(device_, base);
    if (status == FLAGOS_OK) continue;
    failure = status;
    refused.emplace_back(base, size);
    bytes -= size;  // stays counted against the cap
  }
  section.Lock();
  --releasing_;
  ++releases_;
  in_flight_ -= bytes;
  refused_.insert(refused_.end(), refused.begin(), refused.end());
  if (failure == FLAGOS_OK) return;
  section.Unlock();
  CheckStatus(failure, "memory_free", device_);
}

// Everything free that may go. Returns whether there was something.
bool DeviceAllocator::ReleaseFree(Section& section, const std::optional<MemoryPoolId>& id) {
  FlushAll(section);
  Released released;
  VisitPools([&](StreamPool& pool) {
    if (!MayRelease(*pool.group, id)) return;
    for (FreeSet* set : {&pool.small, &pool.large}) {
      for (auto it = set->begin(); it != set->end();) {
        Block* const block = *it++;
        if (!block->Split() && !block->segment->expandable) Retire(section, block, &released);
      }
    }
  });
  bool any = !released.empty();
  GiveBack(section, std::move(released));
  while (Segment* area = ShrinkableArea(id)) {
    ShrinkArea(section, area);
    any = true;
  }
  return any;
}

// With max_split_size, oversize blocks serve nobody else: they go first, and only as many as it takes.
bool DeviceAllocator::ReleaseOversize(Section& section, const Request& request) {
  if (config_.max_split_size == std::numeric_limits<size_t>::max() || request.pool_class() == kSmallPool) return false;
  const size_t wanted = std::max(request.rounded, config_.max_split_size);
  std::vector<Block*> chosen;
  size_t bytes = 0;
  const FreeSet& set = request.pool->large;
  for (auto it = set.rbegin(); it != set.rend() && (*it)->size >= config_.max_split_size; ++it) {
    Block* const block = *it;
    if (block->Split() || block->segment->expandable) continue;
    if (block->size >= wanted) {  // the smallest that is enough by itself
      chosen.assign(1, block);
      bytes = block->size;
    } else if (bytes < wanted) {
      chosen.push_back(block);
      bytes += block->size;
    }
  }
  if (bytes < wanted) return false;
  Released released;
  for (Block* block : chosen) Retire(section, block, &released);
  GiveBack(section, std::move(released));
  return true;
}

// Beyond the threshold, whole segments that lay free for longer than the average go until enough is free again.
void DeviceAllocator::CollectGarbage(Section& section) {
  if (config_.garbage_collection_threshold <= 0) return;
  const uint64_t limit = std::min(cap_, total_bytes_);
  const auto threshold = static_cast<uint64_t>(config_.garbage_collection_threshold * static_cast<double>(limit));
  const auto reserved = static_cast<uint64_t>(stats().reserved_bytes[kAllPools].current);
  if (reserved <= threshold) return;
  uint64_t excess = reserved - threshold;
  const auto now = static_cast<uint64_t>(stats().allocation[kLargePool].allocated);
  const auto age = [now](const Block* block) { return now > block->freed_at ? now - block->freed_at : 0; };
  std::vector<Block*> candidates;
  for (const auto& pool : shared_.by_stream) {
    if (pool == nullptr) continue;
    for (Block* block : pool->large) {
      if (!block->Split() && !block->segment->expandable) candidates.push_back(block);
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const Block* a, const Block* b) { return age(a) > age(b); });
  Released released;
  while (excess > 0 && !candidates.empty()) {
    uint64_t ages = 0;
    for (const Block* block : candidates) ages += age(block);
    const uint64_t average = ages / candidates.size();
    std::vector<Block*> younger;
    for (Block* block : candidates) {
      if (age(block) < average) {
        younger.push_back(block);
        continue;
      }
      excess -= std::min<uint64_t>(excess, block->size);
      Retire(section, block, &released);
    }
    candidates = std::move(younger);
  }
  GiveBack(section, std::move(released));
}

// Whether memory may have become free since `releases_` was `known`. Bounded: the other thread may be waiting for us.
bool DeviceAllocator::WaitForOtherReleases(Section& section, uint64_t known) {
  for (int ms = 0; ms < kReleaseWaitMs && releasing_ != 0 && releases_ == known; ++ms) {
    section.Unlock();
    usleep(1000);
    section.Lock();
  }
  return releases_ != known;
}

void DeviceAllocator::ThrowOutOfMemory(Section& section, const Request& request) {
  section.Unlock();
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  DeviceMemory(device_, &free_bytes, &total_bytes);
  section.Lock();
  MemoryStats& s = stats();
  ++s.num_ooms;
  Trace(section, TraceAction::kOom, reinterpret_cast<void*>(static_cast<uintptr_t>(free_bytes)), request.size,
        request.pool, request.context);
  const auto allocated = static_cast<uint64_t>(s.allocated_bytes[kAllPools].current);
  const auto reserved = static_cast<uint64_t>(s.reserved_bytes[kAllPools].current);
  uint64_t in_private_pools = 0;
  for (const auto& [base, segment] : segments_) {
    if (segment->pool->group == &shared_) continue;
    for (const Block* block = segment->first; block != nullptr; block = block->next) {
      if (block->place == Place::kLive) in_private_pools += block->size;
    }
  }
  const uint64_t cap = cap_;
  section.Unlock();
  std::string text = "flagos out of memory. Tried to allocate " + FormatBytes(request.size) + ". Device " +
                     std::to_string(device_) + " has a total capacity of " + FormatBytes(total_bytes) + " of which " +
                     FormatBytes(free_bytes) + " is free. ";
  if (cap != UINT64_MAX) text += FormatBytes(cap) + " allowed; ";
  text += "Of the allocated memory " + FormatBytes(allocated) + " is allocated by PyTorch, ";
  if (in_private_pools != 0) text += "with " + FormatBytes(in_private_pools) + " allocated in private pools, ";
  text += "and " + FormatBytes(reserved - allocated) + " is reserved by PyTorch but unallocated.";
  throw Error(FLAGOS_OUT_OF_MEMORY, text);
}

}  // namespace torch_fl::runtime
