// SPDX-License-Identifier: Apache-2.0
// Free blocks: quick lists, best fit, splitting and merging. Everything here runs with the lock held.
#include <bit>

#include "runtime/allocator/device_allocator.h"

namespace torch_fl::runtime {

// A free block that shares its segment comes (+1) or goes (-1).
void DeviceAllocator::CountInactive(const Block& block, int64_t sign) noexcept {
  if (!block.Split()) return;
  const PoolClass pool_class = block.segment->pool_class;
  const auto size = static_cast<int64_t>(block.size);
  MemoryStats& s = stats();
  if (sign > 0) {
    Raise(s.inactive_split, pool_class, 1);
    Raise(s.inactive_split_bytes, pool_class, size);
  } else {
    Lower(s.inactive_split, pool_class, 1);
    Lower(s.inactive_split_bytes, pool_class, size);
  }
}

void DeviceAllocator::RemoveFree(Block* block) noexcept {
  CountInactive(*block, -1);
  block->pool->FreeOf(block->segment->pool_class).erase(block);
  block->place = Place::kHeld;
}

// NULL when no free block fits.
Block* DeviceAllocator::TakeFree(Section& section, const Request& request) {
  StreamPool& pool = *request.pool;
  if (request.pool_class() == kSmallPool) {
    if (Block* block = pool.PopQuick(request.rounded / kGranule)) {
      CountInactive(*block, -1);
      return block;
    }
    FlushQuick(section, pool);
  }
  Block wanted;
  wanted.size = request.rounded;
  FreeSet& free = pool.FreeOf(request.pool_class());
  const auto best = free.lower_bound(&wanted);
  if (best == free.end()) return nullptr;
  Block* const block = *best;
  if (!block->segment->expandable && !MayServe(block->size, request.rounded, config_)) return nullptr;
  RemoveFree(block);
  return Carve(block, request);
}

// Cuts what the request needs off the front of a block that is in no list.
Block* DeviceAllocator::Carve(Block* block, const Request& request) {
  const size_t rest = block->size - request.rounded;
  Segment* const segment = block->segment;
  if (!WorthSplitting(rest, request.rounded, segment->expandable, config_)) return block;
  Block* const tail = blocks_.Take();
  tail->base = static_cast<char*>(block->base) + request.rounded;
  tail->slot = g_page_map.Make(tail->base);
  tail->size = rest;
  tail->requested = 0;
  tail->number = 0;
  tail->pool = block->pool;
  tail->segment = segment;
  tail->freed_at = block->freed_at;
  tail->previous = block;
  tail->next = block->next;
  if (tail->next != nullptr) tail->next->previous = tail;
  block->next = tail;
  block->size = request.rounded;
  if (segment->last == block) segment->last = tail;
  tail->place = Place::kFree;
  tail->pool->FreeOf(segment->pool_class).insert(tail);
  CountInactive(*tail, +1);
  return block;
}

// Nobody uses the block any more.
void DeviceAllocator::FinishFree(Section& section, Block* block) {
  const PoolClass pool_class = block->segment->pool_class;
  Lower(stats().active, pool_class, 1);
  Lower(stats().active_bytes, pool_class, static_cast<int64_t>(block->size));
  Trace(section, TraceAction::kFreeCompleted, block->base, block->requested, block->pool, block->context);
  section.Discard(std::exchange(block->context, nullptr));
  block->freed_at = static_cast<uint64_t>(stats().allocation[kLargePool].allocated);
  Insert(section, block);
}

void DeviceAllocator::Insert(Section& section, Block* block) {
  for (Block* neighbour : {block->previous, block->next}) {
    if (neighbour != nullptr && neighbour->place == Place::kFree) Absorb(section, block, neighbour);
  }
  block->place = Place::kFree;
  block->pool->FreeOf(block->segment->pool_class).insert(block);
  CountInactive(*block, +1);
}

void DeviceAllocator::Absorb(Section& section, Block* block, Block* neighbour) {
  RemoveFree(neighbour);
  Segment* const segment = block->segment;
  if (neighbour == block->previous) {
    block->base = neighbour->base;
    block->slot = neighbour->slot;
    block->number = 0;  // what is known of the last allocation does not begin here any more
    block->previous = neighbour->previous;
    if (block->previous != nullptr) block->previous->next = block;
    if (segment->first == neighbour) segment->first = block;
  } else {
    block->next = neighbour->next;
    if (block->next != nullptr) block->next->previous = block;
    if (segment->last == neighbour) segment->last = block;
  }
  block->size += neighbour->size;
  section.Discard(std::exchange(neighbour->context, nullptr));
  blocks_.Return(neighbour);
}

void DeviceAllocator::FlushQuick(Section& section, StreamPool& pool) {
  for (size_t word = 0; word < pool.filled.size(); ++word) {
    uint64_t bits = std::exchange(pool.filled[word], 0);
    for (; bits != 0; bits &= bits - 1) {
      const size_t index = word * 64 + static_cast<size_t>(std::countr_zero(bits));
      Block* block = std::exchange(pool.quick[index], nullptr);
      while (block != nullptr) {
        Block* const next = block->next_quick;
        CountInactive(*block, -1);
        Insert(section, block);
        block = next;
      }
    }
  }
}

void DeviceAllocator::FlushAll(Section& section) {
  VisitPools([&](StreamPool& pool) { FlushQuick(section, pool); });
}

}  // namespace torch_fl::runtime
