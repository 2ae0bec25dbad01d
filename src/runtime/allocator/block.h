// SPDX-License-Identifier: Apache-2.0
// Blocks, segments and the lists of free blocks. Guarded by the lock of the DeviceAllocator that owns them.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "runtime/allocator/page_map.h"
#include "runtime/allocator/rules.h"

namespace torch_fl::runtime {

struct Block;
struct Segment;
struct StreamPool;
struct PoolGroup;

enum class Place : uint8_t {
  kLive,     // a caller holds it
  kQuick,    // free, in a quick list, not merged with its neighbours
  kFree,     // free, in a best-fit set
  kPending,  // freed by its caller; other streams still use it
  kHeld      // between lists, in the hands of one thread
};

// 64-byte alignment leaves the low six bits of its address free for the page map's entry. Blocks are never given back to
// the system (BlockStore), so a stale pointer is still a Block.
struct alignas(64) Block {
  void* base = nullptr;
  size_t size = 0;  // multiple of kGranule
  size_t requested = 0;  // by the last caller
  uint64_t number = 0;  // of the last allocation; 0: none since it was made or merged
  const char* op = nullptr;
  StreamPool* pool = nullptr;
  PageMap::Slot* slot = nullptr;
  Block* next_quick = nullptr;  // also links unused ones

  Block* previous = nullptr;  // neighbours in the segment, by address
  Block* next = nullptr;
  Segment* segment = nullptr;
  Place place = Place::kHeld;
  uint32_t events = 0;  // not yet complete, while kPending
  uint64_t freed_at = 0;  // the large class's clock, for garbage collection
  std::vector<Stream*> uses;  // RecordStream
  MemoryContext context;

  bool Split() const noexcept { return previous != nullptr || next != nullptr; }
};

struct Segment {
  void* base = nullptr;
  size_t bytes = 0;
  PoolClass pool_class = kSmallPool;
  StreamPool* pool = nullptr;
  Block* first = nullptr;
  MemoryContext context;
  // Of an expandable one.
  bool expandable = false;
  bool busy = false;  // a thread maps or unmaps at its end
  size_t reserved = 0;  // address space; `bytes` of it are mapped
  std::vector<size_t> mappings;  // sizes, by address
  Block* last = nullptr;
};

struct BySizeAndAddress {
  bool operator()(const Block* a, const Block* b) const noexcept {
    return a->size != b->size ? a->size < b->size : a->base < b->base;
  }
};
using FreeSet = std::set<Block*, BySizeAndAddress>;

// Free blocks of one stream in one group. A freed small block goes to the quick list of its size and is merged with its
// neighbours only when a request finds neither its size nor a quick list of it.
struct StreamPool {
  static constexpr size_t kLists = kSmallLimit / kGranule + 1;

  StreamPool(PoolGroup* pool_group, int64_t id) : group(pool_group), stream_id(id) {}

  void PushQuick(Block* block) noexcept {
    const size_t index = block->size / kGranule;
    Block*& head = quick[index];
    if (head == nullptr) filled[index / 64] |= uint64_t{1} << (index % 64);
    block->place = Place::kQuick;
    block->next_quick = head;
    head = block;
  }
  // The bit of an emptied list stays; a flush clears it.
  Block* PopQuick(size_t index) noexcept {
    Block* block = quick[index];
    if (block != nullptr) quick[index] = block->next_quick;
    return block;
  }
  FreeSet& FreeOf(PoolClass pool_class) noexcept { return pool_class == kSmallPool ? small : large; }

  PoolGroup* const group;
  const int64_t stream_id;
  std::array<Block*, kLists> quick{};
  std::array<uint64_t, kLists / 64 + 1> filled{};
  FreeSet small;
  FreeSet large;
  std::array<Segment*, kPoolClasses> area{};  // the expandable segment of a class
};

// The device's shared pool, or a private one.
struct PoolGroup {
  explicit PoolGroup(MemoryPoolId pool_id) : id(pool_id) {}

  const MemoryPoolId id;
  int uses = 0;  // RetainPool less ReleasePool
  std::vector<std::unique_ptr<StreamPool>> by_stream;  // index: stream id
};

// Never gives memory back: see Block.
class BlockStore {
 public:
  Block* Take() {
    if (unused_ == nullptr) Refill();
    Block* block = unused_;
    unused_ = block->next_quick;
    block->next_quick = nullptr;
    return block;
  }
  void Return(Block* block) noexcept {
    block->place = Place::kHeld;
    block->previous = block->next = nullptr;
    block->segment = nullptr;
    block->next_quick = unused_;
    unused_ = block;
  }

 private:
  void Refill() {
    constexpr size_t kBatch = 32;
    auto* blocks = new Block[kBatch];
    for (size_t i = 0; i < kBatch; ++i) Return(&blocks[i]);
  }
  Block* unused_ = nullptr;
};

// ---- The page map's entries: bits 0-5 where the block begins in its 512 bytes, in units of 16; bits 6-47 the Block; bits
// 48-55 the device; 0: no live block.
extern PageMap g_page_map;

inline uint64_t EncodeEntry(const Block* block, int device) noexcept {
  const uint64_t residue = (reinterpret_cast<uint64_t>(block->base) % kGranule) / 16;
  return reinterpret_cast<uint64_t>(block) | residue | (static_cast<uint64_t>(device) << 48);
}
inline bool EntryBeginsAt(uint64_t entry, const void* pointer) noexcept {
  return entry != 0 && (entry & 63) * 16 == reinterpret_cast<uint64_t>(pointer) % kGranule;
}
inline Block* EntryBlock(uint64_t entry) noexcept {
  return reinterpret_cast<Block*>(entry & ((uint64_t{1} << 48) - 64));
}
inline int EntryDevice(uint64_t entry) noexcept { return static_cast<int>(entry >> 48); }

}  // namespace torch_fl::runtime
