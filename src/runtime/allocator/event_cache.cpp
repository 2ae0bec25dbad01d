// SPDX-License-Identifier: Apache-2.0
#include "runtime/allocator/event_cache.h"

#include <array>
#include <mutex>
#include <vector>

#include "base/spin_lock.h"
#include "runtime/stream.h"

namespace torch_fl::runtime {
namespace {

struct Cache {
  SpinLock lock;
  std::vector<Event*> events;
};

Cache& CacheOf(int device) {
  static auto* const caches = new std::array<Cache, kMaxDevices>;  // leaked: blocks outlive static destructors
  return (*caches)[static_cast<size_t>(device)];
}

Event* TakeEvent(int device) {
  Cache& cache = CacheOf(device);
  {
    const std::lock_guard lock(cache.lock);
    if (!cache.events.empty()) {
      Event* event = cache.events.back();
      cache.events.pop_back();
      return event;
    }
  }
  return CreateEvent(device, /*timing=*/false, /*blocking=*/false);
}

}  // namespace

Event* MarkStream(Stream* stream) {
  if (!stream->Dirty()) return nullptr;
  Event* event = TakeEvent(stream->device());
  try {
    RecordEvent(event, stream);
  } catch (...) {
    ReturnEvent(event);
    throw;
  }
  return event;
}

void ReturnEvent(Event* event) noexcept {
  Cache& cache = CacheOf(EventDevice(event));
  try {
    const std::lock_guard lock(cache.lock);
    cache.events.push_back(event);
  } catch (const std::bad_alloc&) {
    DestroyEvent(event);
  }
}

void DestroyIdleEvents() noexcept {
  for (int device = 0; device < kMaxDevices; ++device) {
    Cache& cache = CacheOf(device);
    std::vector<Event*> idle;
    {
      const std::lock_guard lock(cache.lock);
      idle.swap(cache.events);
    }
    for (Event* event : idle) DestroyEvent(event);
  }
}

}  // namespace torch_fl::runtime
