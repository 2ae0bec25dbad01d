// SPDX-License-Identifier: Apache-2.0
#include "torch/device/allocator.h"

#include <array>
#include <tuple>
#include <utility>

#include "runtime/allocator.h"
#include "runtime/runtime.h"
#include "torch/device/allocator_settings.h"
#include "torch/device/errors.h"
#include "torch/device/stream.h"
#include "torch/route/scope.h"
#include "torch/route/target.h"

namespace torch_fl {
namespace {

// Host-view offset of each device, filled at the first allocation on it. Devices of one driver usually share one offset, so a
// target address is tried against the few distinct ones.
constexpr int kMaxDevices = 64;
std::array<std::atomic<ptrdiff_t>, kMaxDevices> g_offsets{};
std::array<std::atomic<bool>, kMaxDevices> g_known{};
std::array<std::atomic<ptrdiff_t>, kMaxDevices> g_distinct{};
std::atomic<int> g_distinct_count{0};
std::mutex g_offsets_mutex;

ptrdiff_t LearnOffset(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(g_offsets_mutex);
  TORCH_CHECK(device < kMaxDevices, "flagos: device index ", static_cast<int>(device), " is beyond the supported ",
              kMaxDevices);
  if (g_known[device].load(std::memory_order_relaxed)) return g_offsets[device].load(std::memory_order_relaxed);
  ptrdiff_t offset = Translate([&] { return runtime::HostView() ? runtime::HostViewOffset(device) : 0; });
  int count = g_distinct_count.load(std::memory_order_relaxed);
  bool seen = false;
  for (int i = 0; i < count; ++i) seen |= g_distinct[i].load(std::memory_order_relaxed) == offset;
  if (!seen) {
    g_distinct[count].store(offset, std::memory_order_relaxed);
    g_distinct_count.store(count + 1, std::memory_order_release);
  }
  g_offsets[device].store(offset, std::memory_order_relaxed);
  g_known[device].store(true, std::memory_order_release);
  return offset;
}

// Device address of a target address if it is a live block of ours, else null.
void* ToDeviceAddress(const void* address, int* device) noexcept {
  int count = g_distinct_count.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) {
    auto* candidate =
        const_cast<char*>(static_cast<const char*>(address)) - g_distinct[i].load(std::memory_order_relaxed);
    if (runtime::Owns(candidate, device)) return candidate;
  }
  return nullptr;
}

void FreeTargetView(void* address) { FreeTargetAddress(address); }
void FreeDevice(void* address) { runtime::Free(address); }

int CurrentDeviceChecked(const char* call) {
  int device = runtime::CurrentDevice();
  Translate([&] { runtime::CheckDevice(device, call); });
  return device;
}

// Statistics of a device that nobody used are zeros, those of one that is not there an error.
bool IsUsed(c10::DeviceIndex device) {
  if (runtime::DeviceCount() > 0) Translate([&] { runtime::CheckDevice(device, "memory statistics"); });
  return runtime::HasContext(device);
}

using c10::CachingDeviceAllocator::DeviceStats;

void Set(c10::CachingAllocator::Stat& to, const runtime::Stat& from) {
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
}

// Both sides order them: all, small, large.
void Set(c10::CachingAllocator::StatArray& to, const runtime::StatArray& from) {
  static_assert(std::tuple_size_v<c10::CachingAllocator::StatArray> == std::tuple_size_v<runtime::StatArray>);
  for (size_t i = 0; i < from.size(); ++i) Set(to[i], from[i]);
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    return AllocateDevice(nbytes, static_cast<c10::DeviceIndex>(CurrentDeviceChecked("allocate")), t_route.op);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &FreeDevice; }
  void copy_data(void* dst, const void* src, size_t nbytes) const override {
    int device = runtime::CurrentDevice();
    Translate([&] { runtime::Copy(dst, device, src, device, nbytes, /*async=*/false); });
  }
  bool initialized() override {
    for (int i = 0, n = runtime::DeviceCount(); i < n; ++i)
      if (runtime::HasContext(i)) return true;
    return false;
  }
  void emptyCache(c10::MempoolId_t pool) override {
    if (!initialized()) return;
    Translate([&] {
      if (pool == c10::MempoolId_t{0, 0}) return runtime::EmptyCache();
      runtime::EmptyCache(runtime::MemoryPoolId{pool.first, pool.second});
    });
  }
  // The storage of a flagos tensor may carry the device address or the target's view of it; other memory is nobody's to track.
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    void* block = data.get();
    int device = -1;
    if (block == nullptr) return;
    if (!runtime::Owns(block, &device)) block = ToDeviceAddress(block, &device);
    if (block != nullptr) Translate([&] { runtime::RecordStream(block, FromTorchStream(stream)); });
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    DeviceStats stats;
    if (!IsUsed(device)) return stats;
    const runtime::MemoryStats s = Translate([&] { return runtime::GetMemoryStats(device); });
    Set(stats.allocation, s.allocation);
    Set(stats.segment, s.segment);
    Set(stats.active, s.active);
    Set(stats.inactive_split, s.inactive_split);
    Set(stats.allocated_bytes, s.allocated_bytes);
    Set(stats.reserved_bytes, s.reserved_bytes);
    Set(stats.active_bytes, s.active_bytes);
    Set(stats.inactive_split_bytes, s.inactive_split_bytes);
    Set(stats.requested_bytes, s.requested_bytes);
    Set(stats.oversize_allocations, s.oversize_allocations);
    Set(stats.oversize_segments, s.oversize_segments);
    stats.num_alloc_retries = s.num_alloc_retries;
    stats.num_ooms = s.num_ooms;
    stats.num_sync_all_streams = s.num_sync_all_streams;
    stats.num_device_alloc = s.num_device_alloc;
    stats.num_device_free = s.num_device_free;
    stats.max_split_size = s.max_split_size;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    if (IsUsed(device)) Translate([&] { runtime::ResetAccumulatedStats(device); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    if (IsUsed(device)) Translate([&] { runtime::ResetPeakStats(device); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    uint64_t free_bytes = 0, total_bytes = 0;
    Translate([&] { runtime::DeviceMemory(device, &free_bytes, &total_bytes); });
    return {free_bytes, total_bytes};
  }
};

}  // namespace

ptrdiff_t TargetOffset(c10::DeviceIndex device) {
  if (C10_LIKELY(device < kMaxDevices && g_known[device].load(std::memory_order_acquire)))
    return g_offsets[device].load(std::memory_order_relaxed);
  return LearnOffset(device);
}

c10::DataPtr AllocateTargetView(size_t nbytes, c10::DeviceIndex device, const char* op) {
  ptrdiff_t offset = TargetOffset(device);
  if (nbytes == 0) return c10::DataPtr(nullptr, ActiveTarget().DeviceFor(device));
  char* address = static_cast<char*>(Translate([&] { return runtime::Allocate(device, nbytes, op); })) + offset;
  return {address, address, &FreeTargetView, ActiveTarget().DeviceFor(device)};
}

c10::DataPtr AllocateDevice(size_t nbytes, c10::DeviceIndex device, const char* op) {
  c10::Device where(kFlagos, device);
  if (nbytes == 0) return c10::DataPtr(nullptr, where);
  void* address = Translate([&] { return runtime::Allocate(device, nbytes, op); });
  return {address, address, &FreeDevice, where};
}

bool OwnsTargetAddress(const void* address, int* device) noexcept {
  return ToDeviceAddress(address, device) != nullptr;
}

bool FreeTargetAddress(void* address) noexcept {
  int device = -1;
  void* block = ToDeviceAddress(address, &device);
  if (block == nullptr) return false;
  runtime::Free(block);
  return true;
}

c10::DeviceAllocator* FlagosAllocator() {
  static Allocator* allocator = new Allocator;  // never destroyed: tensors outlive static destructors
  return allocator;
}

void RegisterAllocator() {
  c10::SetAllocator(kFlagos, FlagosAllocator());
  FollowAllocatorSettings();
}

}  // namespace torch_fl
