// SPDX-License-Identifier: Apache-2.0
#include "runtime/pool.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/options.h"
#include "runtime/pool_map.h"

namespace torch_fl::runtime {
namespace {

constexpr int kOddClass = -1;
constexpr size_t kSmallLimit = size_t{1} << 20;
constexpr uint8_t kFreshPoison = 0xFF;  // NaN in every floating-point type, -1 in every integer
constexpr uint8_t kFreedPoison = 0xFD;  // a huge negative number

std::atomic<uint64_t> g_next_number{0};

// The option `poison` of a driver also covers blocks that the pool hands out again without asking the driver.
bool PoisonRequested() {
  for (const DriverOption& option : DriverOptions()) {
    if (option.key == "poison") return ParseFlag(option.variable, option.value);
  }
  return false;
}

// Driver allocations are slow: a segment holds at least four blocks, and few classes leave a tail worth mentioning.
size_t SegmentBytes(size_t block_size) {
  if (block_size > kSmallLimit) return block_size;
  return block_size <= (size_t{256} << 10) ? size_t{2} << 20 : size_t{4} << 20;
}

}  // namespace

Pool::Pool(int device) : device_(device), poison_(PoisonRequested()) {}

bool Pool::WaitsFor(const Block& block, const Stream* stream) const noexcept {
  const Stream* last = block.stream;
  if (last == stream) [[likely]]
    return false;
  if (last == nullptr) last = DefaultStreamIfMade(device_);
  return last != nullptr && last != stream && last->Dirty();
}

void* Pool::Allocate(size_t size, const char* op) {
  if (size > kMaxRequest) ThrowOutOfMemory(size);
  const int size_class = SizeClassOf(size);
  Stream* const stream = CurrentStreamIfMade(device_);
  std::unique_lock lock(mutex_);
  Block* block = free_[static_cast<size_t>(size_class)];
  if (block != nullptr) [[likely]] {
    free_[static_cast<size_t>(size_class)] = block->next;
    ++block->segment->live;
  } else {
    lock.unlock();
    block = Grow(size_class, size);
    lock.lock();
  }
  const bool wait = WaitsFor(*block, stream);
  Stream* const last = block->stream != nullptr ? block->stream : (wait ? DefaultStreamIfMade(device_) : nullptr);
  block->size = size;
  block->op = op;
  block->number = g_next_number.fetch_add(1, std::memory_order_relaxed) + 1;
  block->stream = stream;
  block->live = true;
  void* const base = block->base;
  // The entry says block, device and where in its 512 bytes the block begins, so that Owns reads nothing else.
  block->slot->store(EncodeEntry(block, device_), std::memory_order_release);
  stats_.allocated_bytes += size;
  stats_.peak_allocated_bytes = std::max(stats_.peak_allocated_bytes, stats_.allocated_bytes);
  stats_.total_allocated_bytes += size;
  ++stats_.active_blocks;
  ++stats_.num_alloc_calls;
  lock.unlock();
  // Work of another stream that was queued before the block was freed may still touch it.
  if (wait) [[unlikely]]
    last->Drain();
  if (poison_) [[unlikely]] {
    if (last != nullptr) last->Drain();
    Poison(*block, kFreshPoison);
  }
  return base;
}

void Pool::Free(Block* block, PageMap::Slot* slot) noexcept {
  if (poison_ && !Exiting()) [[unlikely]] {
    try {
      Stream* last = block->stream != nullptr ? block->stream : DefaultStreamIfMade(device_);
      if (last != nullptr) last->Drain();
      Poison(*block, kFreedPoison);
    } catch (const Error& error) {
      std::fprintf(stderr, "torch_fl: poisoning a freed block: %s\n", error.what());
    }
  }
  const std::lock_guard lock(mutex_);
  slot->store(0, std::memory_order_release);
  block->live = false;
  Segment* segment = block->segment;
  --segment->live;
  if (segment->size_class != kOddClass) [[likely]] {
    Block*& head = free_[static_cast<size_t>(segment->size_class)];
    block->next = head;
    head = block;
  }
  stats_.allocated_bytes -= block->size;
  stats_.total_freed_bytes += block->size;
  --stats_.active_blocks;
  ++stats_.num_free_calls;
}

Block* Pool::Grow(int size_class, size_t size) {
  const size_t block_size = SizeOfClass(size_class);
  const size_t preferred = SegmentBytes(block_size);
  Segment* segment = NewSegment(preferred, block_size, size_class);
  if (segment == nullptr) {
    {
      const std::lock_guard lock(mutex_);
      ++stats_.num_alloc_retries;
    }
    ReleaseCached();
    segment = NewSegment(preferred, block_size, size_class);
    if (segment == nullptr) segment = NewSegment(block_size, block_size, size_class);
    // The last bytes of a device are worth a block of no class.
    const size_t exact = (size + kGranule - 1) / kGranule * kGranule;
    if (segment == nullptr && exact < block_size) segment = NewSegment(exact, exact, kOddClass);
    if (segment == nullptr) ThrowOutOfMemory(size);
  }
  return Install(segment);
}

// NULL when the device is full.
void* Pool::DriverAllocate(size_t bytes) {
  MarkContext(device_);
  void* base = nullptr;
  const flagos_status_t status = Driver().memory_alloc(device_, bytes, &base);
  if (status == FLAGOS_OUT_OF_MEMORY) return nullptr;
  CheckStatus(status, "memory_alloc", device_);
  const auto address = reinterpret_cast<uint64_t>(base);
  if (base == nullptr || address % 16 != 0 || (address + bytes) >> PageMap::kAddressBits != 0) {
    Driver().memory_free(device_, base);
    throw Error(FLAGOS_INVALID_VALUE, "memory_alloc on device " + std::to_string(device_) + " gave address " +
                                          std::to_string(address) +
                                          ": the pool needs multiples of 16 below 2^48 and not NULL");
  }
  return base;
}

Segment* Pool::NewSegment(size_t bytes, size_t block_size, int size_class) {
  auto segment = std::make_unique<Segment>();
  segment->bytes = bytes;
  segment->block_size = block_size;
  segment->device = device_;
  segment->size_class = size_class;
  segment->count = static_cast<uint32_t>(bytes / block_size);
  segment->blocks = std::make_unique<Block[]>(segment->count);
  segment->base = DriverAllocate(bytes);
  if (segment->base == nullptr) return nullptr;
  for (uint32_t i = 0; i < segment->count; ++i) {
    Block& block = segment->blocks[i];
    block.base = static_cast<char*>(segment->base) + i * block_size;
    block.segment = segment.get();
    block.slot = g_page_map.Make(block.base);
  }
  return segment.release();
}

// Puts the segment in the books; the first block goes to the caller, the others to the free list in address order.
Block* Pool::Install(Segment* raw) {
  std::unique_ptr<Segment> segment(raw);
  const std::lock_guard lock(mutex_);
  stats_.reserved_bytes += segment->bytes;
  stats_.peak_reserved_bytes = std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
  ++stats_.num_device_malloc;
  for (uint32_t i = segment->count; i-- > 1;) {
    Block& block = segment->blocks[i];
    block.next = free_[static_cast<size_t>(segment->size_class)];
    free_[static_cast<size_t>(segment->size_class)] = &block;
  }
  segment->live = 1;
  segments_.emplace(reinterpret_cast<uintptr_t>(raw->base), std::move(segment));
  return &raw->blocks[0];
}

size_t Pool::ReleaseCached() {
  std::vector<std::unique_ptr<Segment>> idle;
  size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    for (Block*& head : free_) {
      Block** link = &head;
      while (*link != nullptr) {
        if ((*link)->segment->live == 0) {
          *link = (*link)->next;
        } else {
          link = &(*link)->next;
        }
      }
    }
    for (auto it = segments_.begin(); it != segments_.end();) {
      if (it->second->live != 0) {
        ++it;
        continue;
      }
      bytes += it->second->bytes;
      idle.push_back(std::move(it->second));
      it = segments_.erase(it);
    }
    stats_.reserved_bytes -= bytes;
    stats_.num_device_free += idle.size();
  }
  flagos_status_t failure = FLAGOS_OK;
  for (const auto& segment : idle) {
    const flagos_status_t status = Driver().memory_free(device_, segment->base);
    if (status != FLAGOS_OK) failure = status;
  }
  CheckStatus(failure, "memory_free", device_);
  return bytes;
}

void Pool::ThrowOutOfMemory(size_t size) {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  DeviceMemory(device_, &free_bytes, &total_bytes);
  MemoryStats stats;
  {
    const std::lock_guard lock(mutex_);
    ++stats_.num_ooms;
    stats = stats_;
  }
  throw Error(FLAGOS_OUT_OF_MEMORY,
              "flagos out of memory. Tried to allocate " + FormatBytes(size) + ". Device " + std::to_string(device_) +
                  " has a total capacity of " + FormatBytes(total_bytes) + " of which " + FormatBytes(free_bytes) +
                  " is free. Of the allocated memory " + FormatBytes(stats.allocated_bytes) +
                  " is allocated by PyTorch, and " + FormatBytes(stats.reserved_bytes - stats.allocated_bytes) +
                  " is reserved by PyTorch but unallocated.");
}

void Pool::Poison(const Block& block, uint8_t value) {
  CheckStatus(Driver().fill(block.base, device_, value, block.segment->block_size, nullptr), "fill", device_);
}

bool Pool::Find(const void* pointer, AllocationInfo* info, bool* live) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard lock(mutex_);
  auto it = segments_.upper_bound(address);
  if (it == segments_.begin()) return false;
  const Segment& segment = *std::prev(it)->second;
  const size_t index = (address - reinterpret_cast<uintptr_t>(segment.base)) / segment.block_size;
  if (index >= segment.count) return false;
  const Block& block = segment.blocks[index];
  if (block.number == 0) return false;  // never handed out
  const auto start = reinterpret_cast<uintptr_t>(block.base);
  *live = block.live && address < start + std::max<size_t>(block.size, 1);
  info->base = block.base;
  info->size = block.size;
  info->device = device_;
  info->number = block.number;
  info->op = block.op;
  return true;
}

MemoryStats Pool::Stats() {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Pool::ResetPeaks() {
  const std::lock_guard lock(mutex_);
  stats_.peak_allocated_bytes = stats_.allocated_bytes;
  stats_.peak_reserved_bytes = stats_.reserved_bytes;
}

void Pool::ResetAccumulated() {
  const std::lock_guard lock(mutex_);
  stats_.num_alloc_calls = stats_.num_free_calls = 0;
  stats_.num_device_malloc = stats_.num_device_free = 0;
  stats_.num_alloc_retries = stats_.num_ooms = 0;
  stats_.total_allocated_bytes = stats_.total_freed_bytes = 0;
}

}  // namespace torch_fl::runtime
