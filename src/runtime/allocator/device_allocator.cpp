// SPDX-License-Identifier: Apache-2.0
// Handing out and taking back.
#include "runtime/allocator/device_allocator.h"

#include <algorithm>
#include <cstdio>
#include <mutex>

#include "base/options.h"

namespace torch_fl::runtime {
namespace {

constexpr uint8_t kFreshPoison = 0xFF;  // NaN in every floating-point type, -1 in every integer
constexpr uint8_t kFreedPoison = 0xFD;  // a huge negative number

std::atomic<uint64_t> g_next_number{0};

// The option `poison` of a driver also covers blocks that are handed out again without asking the driver.
bool PoisonRequested() {
  for (const DriverOption& option : DriverOptions()) {
    if (option.key == "poison") return ParseFlag(option.variable, option.value);
  }
  return false;
}

}  // namespace

DeviceAllocator::DeviceAllocator(int device, const AllocatorConfig& config)
    : device_(device), total_bytes_(DeviceInfo(device).total_memory), poison_(PoisonRequested()) {
  if (poison_) attention_ = kPoison;
  Configure(config);
}

void* DeviceAllocator::Allocate(size_t size, const char* op) {
  Stream* const stream = CurrentStreamIfMade(device_);
  if (size <= kSmallLimit) [[likely]] {
    const size_t id = stream != nullptr ? static_cast<size_t>(stream->id()) : 0;
    const std::lock_guard lock(lock_);
    if (attention_.load(std::memory_order_relaxed) == 0 && id < shared_.by_stream.size()) [[likely]] {
      if (StreamPool* pool = shared_.by_stream[id].get()) [[likely]] {
        if (Block* block = pool->PopQuick((size + kGranule - 1) / kGranule)) [[likely]] {
          HandOut(block, size, op);
          counters_.TakeQuick(block->size, size);
          return block->base;
        }
      }
    }
  }
  return AllocateSlow(size, op, stream);
}

// The entry says block, device and where in its 512 bytes the block begins, so that Owns reads nothing else.
inline void DeviceAllocator::HandOut(Block* block, size_t size, const char* op) noexcept {
  block->requested = size;
  block->op = op;
  block->number = g_next_number.fetch_add(1, std::memory_order_relaxed) + 1;
  block->place = Place::kLive;
  block->slot->store(EncodeEntry(block, device_), std::memory_order_release);
}

void* DeviceAllocator::AllocateSlow(size_t size, const char* op, Stream* stream) {
  Request request;
  request.size = size;
  request.op = op;
  const uint32_t attention = attention_.load(std::memory_order_relaxed);
  if ((attention & kPending) != 0) PollUses();
  const MemoryPoolId pool_id = (attention & kFilters) != 0 ? ChoosePool() : MemoryPoolId{};
  request.context = Gather(HistoryContext::kState);
  Block* block = nullptr;
  {
    Section section(*this);
    request.pool = PoolOf(GroupOf(pool_id), stream != nullptr ? stream->id() : 0);
    if (size > kMaxRequest) ThrowOutOfMemory(section, request);
    request.rounded = RoundRequest(size, config_);
    block = TakeFree(section, request);
    if (block == nullptr) block = Grow(section, request);
    HandOut(block, size, op);
    CountAllocation(*block);
    Trace(section, TraceAction::kAlloc, block->base, size, block->pool, request.context);
    section.Discard(std::exchange(block->context, std::move(request.context)));
  }
  void* const base = block->base;
  if (poison_) [[unlikely]] {
    try {
      Poison(*block, kFreshPoison, stream);
    } catch (...) {
      Free(base, block->slot);
      throw;
    }
  }
  return base;
}

void DeviceAllocator::Free(void* pointer, PageMap::Slot* slot) noexcept {
  {
    const std::lock_guard lock(lock_);
    const uint64_t entry = slot->load(std::memory_order_relaxed);
    Block* const block = EntryBlock(entry);
    if (EntryBeginsAt(entry, pointer) && (attention_.load(std::memory_order_relaxed) & kFreeAttention) == 0 &&
        block->size <= kSmallLimit && block->Split() && block->uses.empty()) [[likely]] {
      slot->store(0, std::memory_order_release);
      block->pool->PushQuick(block);
      counters_.GiveQuick(block->size, block->requested);
      return;
    }
  }
  FreeSlow(pointer, slot);
}

void DeviceAllocator::FreeSlow(void* pointer, PageMap::Slot* slot) noexcept {
  MemoryContext context = Gather(HistoryContext::kAll);
  Section section(*this);
  const uint64_t entry = slot->load(std::memory_order_relaxed);
  if (!EntryBeginsAt(entry, pointer)) {
    section.Unlock();
    // Nothing can be thrown here and the caller's mistake must not become a corrupted list.
    std::fprintf(stderr, "torch_fl: Free(%p): not the address of a live flagos block; ignored\n", pointer);
    return;
  }
  Block* const block = EntryBlock(entry);
  slot->store(0, std::memory_order_release);
  block->place = Place::kPending;
  CountFree(*block);
  Trace(section, TraceAction::kFreeRequested, pointer, block->requested, block->pool,
        context != nullptr ? context : block->context);
  const bool used = !block->uses.empty();
  if (used || (poison_ && !Exiting())) {
    block->events = 1;  // ours, so that the block is not finished while streams are being marked
    const std::vector<Stream*> streams = std::exchange(block->uses, {});
    section.Unlock();
    // At exit the driver may be gone: what others use stays as it is for the rest of the process.
    if (used && Exiting()) return;
    MarkUses(block, streams);
    section.Lock();
    if (--block->events != 0) return;
    if (poison_ && !Exiting()) {
      section.Unlock();
      PoisonFreed(*block);
      section.Lock();
    }
  }
  FinishFree(section, block);
}

void DeviceAllocator::RecordStream(PageMap::Slot* slot, const void* pointer, Stream* stream) {
  const std::lock_guard lock(lock_);
  const uint64_t entry = slot->load(std::memory_order_relaxed);
  if (!EntryBeginsAt(entry, pointer)) return;
  Block& block = *EntryBlock(entry);
  if (stream->device() == device_ && stream->id() == block.pool->stream_id) return;
  for (const Stream* known : block.uses) {
    if (known == stream) return;
  }
  block.uses.push_back(stream);
}

void DeviceAllocator::CountAllocation(const Block& block) noexcept {
  const PoolClass pool_class = block.segment->pool_class;
  const auto size = static_cast<int64_t>(block.size);
  MemoryStats& s = stats();
  Raise(s.allocation, pool_class, 1);
  Raise(s.allocated_bytes, pool_class, size);
  Raise(s.active, pool_class, 1);
  Raise(s.active_bytes, pool_class, size);
  Raise(s.requested_bytes, pool_class, static_cast<int64_t>(block.requested));
  if (block.size >= config_.max_split_size) Raise(s.oversize_allocations, 1);
}

// `active` ends in FinishFree, when no stream uses the block any more.
void DeviceAllocator::CountFree(const Block& block) noexcept {
  const PoolClass pool_class = block.segment->pool_class;
  MemoryStats& s = stats();
  Lower(s.allocation, pool_class, 1);
  Lower(s.allocated_bytes, pool_class, static_cast<int64_t>(block.size));
  Lower(s.requested_bytes, pool_class, static_cast<int64_t>(block.requested));
  if (block.size >= config_.max_split_size) Lower(s.oversize_allocations, 1);
}

// In `stream`'s place in line, where that matters: a fill without a stream would wait for all of them. NULL: the default stream,
// which nobody has used yet.
void DeviceAllocator::Poison(const Block& block, uint8_t value, Stream* stream) {
  flagos_stream_t handle = nullptr;
  if (KernelsAreOrdered()) {
    if (stream == nullptr) stream = DefaultStream(device_);
    handle = stream->Handle();
  } else if (stream != nullptr) {
    stream->Drain();
  }
  CheckStatus(Driver().fill(block.base, device_, value, block.size, handle), "fill", device_);
  if (handle == nullptr) return;
  stream->MarkSubmitted();
  // Now: the block may be the result of a kernel that has begun and will not wait again.
  CheckStatus(Driver().kernel_begin(handle), "kernel_begin", device_);
}

// Other streams are done with the block; its own one may not be.
void DeviceAllocator::PoisonFreed(const Block& block) noexcept {
  try {
    Stream* const own =
        block.pool->stream_id == 0 ? DefaultStreamIfMade(device_) : StreamFromId(device_, block.pool->stream_id);
    Poison(block, kFreedPoison, own);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torch_fl: poisoning a freed block: %s\n", error.what());
  }
}

bool DeviceAllocator::Find(const void* pointer, AllocationInfo* info, bool* live) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard lock(lock_);
  const auto after = segments_.upper_bound(address);
  if (after == segments_.begin()) return false;
  const Segment& segment = *std::prev(after)->second;
  if (address - reinterpret_cast<uintptr_t>(segment.base) >= segment.bytes) return false;
  const Block* block = segment.first;
  while (block->next != nullptr && address >= reinterpret_cast<uintptr_t>(block->next->base)) block = block->next;
  if (block->number == 0) return false;  // free, and merged since
  *live = block->place == Place::kLive && address < reinterpret_cast<uintptr_t>(block->base) + block->requested;
  info->base = block->base;
  info->size = block->requested;
  info->device = device_;
  info->number = block->number;
  info->op = block->op;
  return true;
}

void DeviceAllocator::EmptyCache(std::optional<MemoryPoolId> id) {
  AwaitUses();
  Section section(*this);
  ReleaseFree(section, id);
  DropEmptyGroups();
}

MemoryStats DeviceAllocator::Stats() {
  Section section(*this);
  FlushAll(section);
  return stats();
}

void DeviceAllocator::ResetPeakStats() {
  Section section(*this);
  FlushAll(section);
  ResetPeaks(stats());
}

void DeviceAllocator::ResetAccumulatedStats() {
  Section section(*this);
  ResetAccumulated(stats());
}

void DeviceAllocator::Configure(const AllocatorConfig& config) {
  Section section(*this);
  config_ = config;
  const bool split_limited = config.max_split_size != std::numeric_limits<size_t>::max();
  stats().max_split_size = split_limited ? static_cast<int64_t>(config.max_split_size) : -1;
  const bool rounds = std::any_of(config.roundup_power2_divisions.begin(), config.roundup_power2_divisions.end(),
                                  [](size_t divisions) { return divisions > 1; });
  if (rounds) {
    attention_ |= kRounding;
  } else {
    attention_ &= ~kRounding;
  }
}

void DeviceAllocator::SetFraction(double fraction) {
  Section section(*this);
  fraction_ = fraction;
  cap_ = fraction < 1 ? static_cast<uint64_t>(fraction * static_cast<double>(total_bytes_)) : UINT64_MAX;
}

double DeviceAllocator::Fraction() {
  const std::lock_guard lock(lock_);
  return fraction_;
}

uint64_t DeviceAllocator::LeakedBlocks() {
  const std::lock_guard lock(lock_);
  return leaked_;
}

}  // namespace torch_fl::runtime
