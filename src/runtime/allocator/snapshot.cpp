// SPDX-License-Identifier: Apache-2.0
// Trace entries as they happen, and the picture of all segments.
#include "runtime/allocator/device_allocator.h"

namespace torch_fl::runtime {

// Where the caller is, if contexts of that kind are wanted. Outside the lock: gathering is foreign code. At exit that code
// may be gone.
MemoryContext DeviceAllocator::Gather(HistoryContext least) noexcept {
  if ((attention_.load(std::memory_order_relaxed) & kHistory) == 0) [[likely]]
    return nullptr;
  HistorySettings settings;
  {
    const std::lock_guard lock(lock_);
    settings = history_.settings();
  }
  if (settings.gather == nullptr || settings.when < least || Exiting()) return nullptr;
  try {
    return settings.gather();
  } catch (...) {
    return nullptr;  // a picture without this stack beats a failed allocation
  }
}

void DeviceAllocator::Trace(Section& section, TraceAction action, const void* address, size_t size,
                            const StreamPool* pool, const MemoryContext& context) noexcept {
  if (!history_.on()) [[likely]]
    return;
  TraceEntry entry;
  entry.action = action;
  entry.address = reinterpret_cast<uint64_t>(address);
  entry.size = size;
  entry.stream = pool != nullptr ? pool->stream_id : 0;
  if (pool != nullptr) entry.pool = pool->group->id;
  entry.time_us = TraceTime();
  if (history_.settings().when >= HistoryContext::kAlloc) entry.context = context;
  try {
    section.Discard(history_.Add(std::move(entry)));
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): a shorter history is all that is lost
  }
}

void DeviceAllocator::SetHistory(const HistorySettings& settings) {
  std::vector<TraceEntry> dropped;  // dies after the section
  Section section(*this);
  dropped = history_.Set(settings);
  if (history_.on()) {
    attention_ |= kHistory;
  } else {
    attention_ &= ~kHistory;
  }
}

namespace {

BlockState StateOf(const Block& block) {
  switch (block.place) {
    case Place::kLive:
      return BlockState::kActiveAllocated;
    case Place::kPending:
      return BlockState::kActivePendingFree;
    case Place::kQuick:
    case Place::kFree:
    case Place::kHeld:
      break;
  }
  return BlockState::kInactive;
}

SegmentSnapshot Picture(int device, const Segment& segment) {
  SegmentSnapshot out;
  out.device = device;
  out.address = reinterpret_cast<uint64_t>(segment.base);
  out.total_size = segment.bytes;
  out.stream = segment.pool->stream_id;
  out.is_large = segment.pool_class == kLargePool;
  out.is_expandable = segment.expandable;
  out.pool = segment.pool->group->id;
  out.context = segment.context;
  for (const Block* block = segment.first; block != nullptr; block = block->next) {
    BlockSnapshot part;
    part.address = reinterpret_cast<uint64_t>(block->base);
    part.size = block->size;
    part.state = StateOf(*block);
    part.context = block->context;
    if (part.state != BlockState::kInactive) {
      part.requested_size = block->requested;
      out.active_size += part.size;
      out.requested_size += part.requested_size;
    }
    if (part.state == BlockState::kActiveAllocated) out.allocated_size += part.size;
    out.blocks.push_back(std::move(part));
  }
  return out;
}

}  // namespace

void DeviceAllocator::Snapshot(const std::optional<MemoryPoolId>& pool, MemorySnapshot* out) {
  Section section(*this);
  FlushAll(section);
  out->traces.push_back(history_.Entries());
  for (const auto& [base, segment] : segments_) {
    if (segment->bytes == 0 || (pool.has_value() && *pool != segment->pool->group->id)) continue;
    out->segments.push_back(Picture(device_, *segment));
  }
  Trace(section, TraceAction::kSnapshot, nullptr, static_cast<size_t>(stats().active_bytes[kAllPools].current), nullptr,
        nullptr);
}

}  // namespace torch_fl::runtime
