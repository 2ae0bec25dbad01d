// SPDX-License-Identifier: Apache-2.0
// Expandable segments: one reservation of addresses for each stream pool and class, with memory behind its front. It grows
// and shrinks at the end, so that blocks of any size can merge. Entered and left with the lock held, open in between.
#include <cstdio>
#include <exception>
#include <mutex>

#include "runtime/allocator/device_allocator.h"

namespace torch_fl::runtime {
namespace {

bool DriverMaps() {
  const flagos_driver_v1_t& driver = Driver();
  if (driver.memory_granularity != nullptr && driver.memory_reserve != nullptr && driver.memory_release != nullptr &&
      driver.memory_map != nullptr && driver.memory_unmap != nullptr) {
    return true;
  }
  static std::once_flag warned;
  std::call_once(warned, [] {
    std::fprintf(stderr, "torch_fl: expandable_segments is ignored: driver %s cannot map memory\n",
                 GetDriverInfo().name.c_str());
  });
  return false;
}

// Maps memory of `sizes` one behind the other at `address`; all or nothing. False when the device is full.
bool MapAll(int device, char* address, const std::vector<size_t>& sizes) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    const flagos_status_t status = Driver().memory_map(device, address, sizes[i]);
    if (status == FLAGOS_OK) {
      address += sizes[i];
      continue;
    }
    const bool full = status == FLAGOS_OUT_OF_MEMORY;
    std::exception_ptr failure;
    try {
      if (!full) CheckStatus(status, "memory_map", device);
    } catch (...) {
      failure = std::current_exception();  // before the calls below overwrite what the driver remembers
    }
    while (i-- > 0) {
      address -= sizes[i];
      CheckStatus(Driver().memory_unmap(device, address, sizes[i]), "memory_unmap", device);
    }
    if (failure != nullptr) std::rethrow_exception(failure);
    return false;
  }
  return true;
}

}  // namespace

// Maps at least `missing` bytes behind what is mapped. kFull: the device, or the cap. kNotHere: the area cannot hold more.
DeviceAllocator::Growth DeviceAllocator::Extend(Segment& area, size_t missing, bool tight, Extension* out) {
  size_t granularity = 0;
  CheckStatus(Driver().memory_granularity(device_, &granularity), "memory_granularity", device_);
  if (area.reserved == 0) {
    MarkContext(device_);
    const size_t room = RoundUp(total_bytes_ + total_bytes_ / 8, granularity);
    const flagos_status_t status = Driver().memory_reserve(device_, room, &area.base);
    if (status == FLAGOS_OUT_OF_MEMORY) return Growth::kNotHere;
    CheckStatus(status, "memory_reserve", device_);
    area.reserved = room;
  }
  size_t step = 0;
  bool allowed = false;
  {
    Section section(*this);
    step = RoundUp(area.pool_class == kSmallPool ? kSmallSegment : config_.large_segment_size, granularity);
    if (tight) {
      out->sizes.assign(1, RoundUp(missing, granularity));
    } else {
      out->sizes.assign(RoundUp(missing, step) / step, step);
    }
    for (const size_t size : out->sizes) out->bytes += size;
    if (out->bytes > area.reserved - area.bytes) return Growth::kNotHere;
    allowed = Reserve(out->bytes);
  }
  if (!allowed) return Growth::kFull;
  const auto settle = [&] {
    Section section(*this);
    in_flight_ -= out->bytes;
  };
  try {
    char* const end = static_cast<char*>(area.base) + area.bytes;
    out->slot = g_page_map.Make(end);
    // Without a slot the address is one that the page map cannot hold.
    const bool mapped = out->slot != nullptr && MapAll(device_, end, out->sizes);
    settle();
    if (mapped) return Growth::kDone;
    return out->slot == nullptr ? Growth::kNotHere : Growth::kFull;
  } catch (...) {
    settle();
    throw;
  }
}

// The new memory joins `tail`, which lies free at the end of the area or is a new block without bytes.
void DeviceAllocator::Append(Section& section, Segment& area, Block* tail, const Extension& extension) {
  char* const end = static_cast<char*>(area.base) + area.bytes;
  if (tail->size == 0) {
    tail->base = end;
    tail->slot = extension.slot;
    tail->number = 0;
    tail->pool = area.pool;
    tail->segment = &area;
    tail->previous = area.last;
    if (area.last != nullptr) area.last->next = tail;
    if (area.first == nullptr) area.first = tail;
    area.last = tail;
  }
  tail->size += extension.bytes;
  MemoryStats& s = stats();
  if (area.bytes == 0) Raise(s.segment, area.pool_class, 1);
  Raise(s.reserved_bytes, area.pool_class, static_cast<int64_t>(extension.bytes));
  s.num_device_alloc += static_cast<int64_t>(extension.sizes.size());
  area.bytes += extension.bytes;
  area.mappings.insert(area.mappings.end(), extension.sizes.begin(), extension.sizes.end());
  Trace(section, TraceAction::kSegmentMap, end, extension.bytes, area.pool, area.context);
  if (tail->previous != nullptr && tail->previous->place == Place::kFree) Absorb(section, tail, tail->previous);
}

// kNotHere: the driver cannot, the reservation is used up, or another thread is busy with it: an ordinary segment will do.
DeviceAllocator::Growth DeviceAllocator::GrowArea(Section& section, const Request& request, bool tight, Block** out) {
  if (!DriverMaps()) return Growth::kNotHere;
  Segment*& place = request.pool->area[request.pool_class()];
  if (place != nullptr && place->busy) return Growth::kNotHere;
  std::unique_ptr<Segment> fresh;
  if (place == nullptr) {
    fresh = std::make_unique<Segment>();
    fresh->pool = request.pool;
    fresh->pool_class = request.pool_class();
    fresh->expandable = true;
    fresh->context = request.context;
    place = fresh.get();
  }
  Segment& area = *place;
  // Busy: nobody else grows or shrinks it. Its free end is in our hands.
  area.busy = true;
  const bool joins = area.last != nullptr && area.last->place == Place::kFree;
  Block* const tail = joins ? area.last : blocks_.Take();
  if (joins) {
    RemoveFree(tail);
  } else {
    tail->size = 0;
  }
  Extension extension;
  Growth growth = Growth::kNotHere;
  std::exception_ptr failure;
  section.Unlock();
  try {
    growth = Extend(area, request.rounded - tail->size, tight, &extension);
  } catch (...) {
    failure = std::current_exception();
  }
  section.Lock();
  area.busy = false;
  if (growth == Growth::kDone) {
    if (fresh != nullptr) segments_.emplace(reinterpret_cast<uintptr_t>(area.base), std::move(fresh));
    Append(section, area, tail, extension);
    *out = Carve(tail, request);
    return growth;
  }
  if (joins) {
    Insert(section, tail);
  } else {
    blocks_.Return(tail);
  }
  if (fresh != nullptr) {
    place = nullptr;
    section.Unlock();
    if (fresh->reserved != 0) Driver().memory_release(device_, fresh->base, fresh->reserved);
    section.Lock();
  }
  if (failure == nullptr) return growth;
  section.Unlock();
  std::rethrow_exception(failure);
}

Segment* DeviceAllocator::ShrinkableArea(const std::optional<MemoryPoolId>& id) {
  Segment* found = nullptr;
  VisitPools([&](const StreamPool& pool) {
    if (!MayRelease(*pool.group, id)) return;
    for (Segment* area : pool.area) {
      if (area == nullptr || area->busy || area->last == nullptr || area->last->place != Place::kFree) continue;
      if (area->last->size >= area->mappings.back()) found = area;
    }
  });
  return found;
}

// Gives back the mappings that lie wholly in the free end.
void DeviceAllocator::ShrinkArea(Section& section, Segment* area) {
  Block* const tail = area->last;
  RemoveFree(tail);
  std::vector<size_t> sizes;  // from the end
  size_t bytes = 0;
  while (!area->mappings.empty() && bytes + area->mappings.back() <= tail->size) {
    sizes.push_back(area->mappings.back());
    bytes += area->mappings.back();
    area->mappings.pop_back();
  }
  if (bytes == tail->size) {
    area->last = tail->previous;
    if (tail->previous != nullptr) tail->previous->next = nullptr;
    if (area->first == tail) area->first = nullptr;
    blocks_.Return(tail);
  } else {
    tail->size -= bytes;
    Insert(section, tail);
  }
  char* end = static_cast<char*>(area->base) + area->bytes;
  area->bytes -= bytes;
  area->busy = true;
  MemoryStats& s = stats();
  Lower(s.reserved_bytes, area->pool_class, static_cast<int64_t>(bytes));
  s.num_device_free += static_cast<int64_t>(sizes.size());
  const bool empty = area->bytes == 0;
  if (empty) Lower(s.segment, area->pool_class, 1);
  Trace(section, TraceAction::kSegmentUnmap, end - bytes, bytes, area->pool, area->context);
  in_flight_ += bytes;
  ++releasing_;
  section.Unlock();
  const char* entry = "memory_unmap";
  flagos_status_t status = FLAGOS_OK;
  for (size_t i = 0; i < sizes.size() && status == FLAGOS_OK; ++i) {
    end -= sizes[i];
    status = Driver().memory_unmap(device_, end, sizes[i]);
  }
  if (status == FLAGOS_OK && empty) {
    entry = "memory_release";
    status = Driver().memory_release(device_, area->base, area->reserved);
  }
  section.Lock();
  --releasing_;
  ++releases_;
  in_flight_ -= bytes;
  if (status != FLAGOS_OK) {  // busy for ever: nobody knows what is mapped there
    section.Unlock();
    CheckStatus(status, entry, device_);
  }
  area->busy = false;
  if (!empty) return;
  area->pool->area[area->pool_class] = nullptr;
  section.Discard(std::exchange(area->context, nullptr));
  segments_.erase(reinterpret_cast<uintptr_t>(area->base));
}

}  // namespace torch_fl::runtime
