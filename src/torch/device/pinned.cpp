// SPDX-License-Identifier: Apache-2.0
#include "torch/device/pinned.h"

#include <c10/core/CPUAllocator.h>

#include "runtime/pinned.h"
#include "runtime/runtime.h"
#include "torch/device/errors.h"
#include "torch/device/stream.h"
#include "torch/route/target.h"

namespace torch_fl {
namespace {

void Set(c10::CachingAllocator::Stat& to, const runtime::Stat& from) {
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
}

class Allocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    return Translate([&] {
      runtime::CheckAttention("pin_memory");
      if (!runtime::HostMemoryAvailable()) return c10::GetCPUAllocator()->allocate(size);
      void* pointer = runtime::HostAllocate(size);
      return c10::DataPtr(pointer, pointer, &runtime::HostFree, c10::Device(c10::DeviceType::CPU));
    });
  }
  c10::DeleterFnPtr raw_deleter() const override { return &runtime::HostFree; }
  void copy_data(void* dest, const void* src, std::size_t count) const override { default_copy_data(dest, src, count); }

  bool record_event(void* pointer, void* context, c10::Stream stream) override {
    return Translate(
        [&] { return runtime::HostRecordStream(context != nullptr ? context : pointer, FromTorchStream(stream)); });
  }
  void empty_cache() override {
    Translate([] { runtime::HostEmptyCache(); });
  }
  at::HostStats get_stats() override {
    const runtime::HostMemoryStats s = Translate([] { return runtime::GetHostMemoryStats(); });
    at::HostStats stats;
    Set(stats.active_requests, s.allocation);
    Set(stats.active_bytes, s.allocated_bytes);
    Set(stats.allocations, s.segment);
    Set(stats.allocated_bytes, s.reserved_bytes);
    stats.host_alloc_time.total = s.host_alloc_us;
    stats.host_alloc_time.count = s.num_host_alloc;
    stats.host_free_time.total = s.host_free_us;
    stats.host_free_time.count = s.num_host_free;
    stats.num_host_alloc = s.num_host_alloc;
    stats.num_host_free = s.num_host_free;
    return stats;
  }
  void reset_accumulated_stats() override {
    Translate([] { runtime::ResetHostAccumulatedStats(); });
  }
  void reset_peak_stats() override {
    Translate([] { runtime::ResetHostPeakStats(); });
  }
};

Allocator* TheAllocator() {
  static auto* allocator = new Allocator;  // never destroyed: storages may die after static destruction
  return allocator;
}

}  // namespace

c10::Allocator* PinnedAllocator() {
  if (!runtime::HostMemoryAvailable()) return c10::GetCPUAllocator();
  return TheAllocator();
}

bool IsPinned(const void* pointer) noexcept { return runtime::DeviceCount() > 0 && runtime::IsPinned(pointer); }

void RegisterPinned() { at::setHostAllocator(kFlagos, TheAllocator()); }

}  // namespace torch_fl
