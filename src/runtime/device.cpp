// SPDX-License-Identifier: Apache-2.0
// Devices, the calling thread's current device, and the attention word.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/options.h"
#include "runtime/allocator.h"
#include "runtime/stream.h"

namespace torch_fl::runtime {

std::atomic<uint32_t> g_attention{0};
AtomicCounters g_counters;

namespace {

// Four bytes of the static block every process reserves for libraries that are opened late: no look-up call.
[[gnu::tls_model("initial-exec")]] constinit thread_local int t_device = 0;
std::atomic<int> g_device_count{-1};  // -1: not asked yet

constexpr int kNoOffset = 0;
constexpr int kOffsetKnown = 1;
struct ViewOffset {
  std::atomic<int> state{kNoOffset};
  std::atomic<ptrdiff_t> value{0};
};
std::array<ViewOffset, kMaxDevices> g_offsets;

int QueryDeviceCount() {
  int count = g_device_count.load(std::memory_order_acquire);
  if (count >= 0) [[likely]]
    return count;
  int32_t reported = 0;
  CheckStatus(Driver().device_count(&reported), "device_count", -1);
  count = std::clamp<int>(reported, 0, kMaxDevices);
  g_device_count.store(count, std::memory_order_release);
  return count;
}

}  // namespace

int DeviceCount() noexcept {
  try {
    return QueryDeviceCount();
  } catch (...) {
    return 0;
  }
}

std::string UnavailableReason() {
  try {
    if (QueryDeviceCount() > 0) return {};
    std::string given;
    for (const DriverOption& option : DriverOptions()) given += " " + option.variable + "=" + option.value;
    const flagos_error_t* error = Driver().last_error();
    const std::string why =
        error != nullptr && error->status == FLAGOS_NO_DEVICE ? ": " + std::string(error->vendor_text) : "";
    return "driver " + GetDriverInfo().name + " reports no device" + why +
           (given.empty() ? "" : "; it was given" + given);
  } catch (const Error& error) {
    return error.what();
  }
}

void CheckDevice(int device, const char* call) {
  const int count = DeviceCount();
  if (device >= 0 && device < count) [[likely]]
    return;
  if (count == 0) {
    throw Error(FLAGOS_NO_DEVICE, std::string(call) + ": no flagos device is available: " + UnavailableReason());
  }
  throw Error(FLAGOS_INVALID_DEVICE, std::string(call) + ": invalid device ordinal flagos:" + std::to_string(device) +
                                         "; valid are 0 to " + std::to_string(count - 1));
}

int CurrentDevice() noexcept { return t_device; }

void SetDevice(int device) {
  CheckNotForked("set_device");
  CheckDevice(device, "set_device");
  t_device = device;
}

int ExchangeDevice(int device) {
  const int previous = t_device;
  if (device < 0 || device == previous) return previous;
  CheckNotForked("exchange_device");
  CheckDevice(device, "exchange_device");
  t_device = device;
  return previous;
}

flagos_device_info_t DeviceInfo(int device) {
  CheckNotForked("device_info");
  CheckDevice(device, "device_info");
  flagos_device_info_t info{};
  info.struct_size = sizeof info;
  CheckStatus(Driver().device_info(device, &info), "device_info", device);
  return info;
}

void DeviceMemory(int device, uint64_t* free_bytes, uint64_t* total_bytes) {
  CheckNotForked("device_memory");
  CheckDevice(device, "device_memory");
  if (Driver().device_memory != nullptr) {
    CheckStatus(Driver().device_memory(device, free_bytes, total_bytes), "device_memory", device);
    return;
  }
  const uint64_t total = DeviceInfo(device).total_memory;
  const auto reserved = static_cast<uint64_t>(GetMemoryStats(device).reserved_bytes[kAllPools].current);
  *total_bytes = total;
  *free_bytes = total > reserved ? total - reserved : 0;
}

void SynchronizeDevice(int device) {
  CheckNotForked("synchronize");
  CheckDevice(device, "synchronize");
  if (!HasContext(device)) return;
  DeviceMarks marks(device);
  Count(g_counters.device_syncs);
  CheckStatus(Driver().device_sync(device), "device_sync", device);
  marks.Drained();
}

bool HostView() { return (GetDriverInfo().capabilities & FLAGOS_CAP_HOST_VIEW) != 0; }

ptrdiff_t HostViewOffset(int device) {
  if (device >= 0 && device < kMaxDevices) [[likely]] {
    ViewOffset& known = g_offsets[static_cast<size_t>(device)];
    if (known.state.load(std::memory_order_acquire) == kOffsetKnown) [[likely]] {
      return known.value.load(std::memory_order_relaxed);
    }
  }
  CheckNotForked("host_view_offset");
  CheckDevice(device, "host_view_offset");
  if (!HostView()) {
    throw Error(FLAGOS_UNSUPPORTED,
                "host_view_offset: driver " + GetDriverInfo().name + " has no host view of device memory");
  }
  ptrdiff_t offset = 0;
  CheckStatus(Driver().host_view_offset(device, &offset), "host_view_offset", device);
  ViewOffset& known = g_offsets[static_cast<size_t>(device)];
  known.value.store(offset, std::memory_order_relaxed);
  known.state.store(kOffsetKnown, std::memory_order_release);
  return offset;
}

void CheckAttentionSlow(const char* call) {
  CheckNotForked(call);
  const flagos_driver_v1_t& driver = Driver();
  if (driver.access_fault_take == nullptr) return;
  flagos_access_fault_t fault{};
  fault.struct_size = sizeof fault;
  const flagos_status_t status = driver.access_fault_take(&fault);
  if (status == FLAGOS_NOT_READY) [[likely]]
    return;
  CheckStatus(status, "access_fault_take", -1);

  std::string text = "host access to device memory: ";
  AllocationInfo info;
  bool live = false;
  if (FindLastAllocation(fault.address, &info, &live)) {
    text += "allocation #" + std::to_string(info.number) + ", " + std::to_string(info.size) + " bytes, allocated by " +
            (info.op != nullptr ? info.op : "an unnamed call") + (live ? "" : ", already freed");
  } else {
    text += "no allocation of the pool";
  }
  char detail[96];
  std::snprintf(detail, sizeof detail, " (%s at %p on flagos:%d, noticed by ",
                fault.is_write == 1 ? "write" : (fault.is_write == 0 ? "read" : "access"), fault.address, fault.device);
  throw Error(FLAGOS_INVALID_VALUE, text + detail + call + "). Copy the tensor to the CPU first: tensor.cpu()");
}

RuntimeCounters GetRuntimeCounters() noexcept {
  const auto get = [](const std::atomic<uint64_t>& value) { return value.load(std::memory_order_relaxed); };
  RuntimeCounters out;
  out.copies_h2d = get(g_counters.copies_h2d);
  out.copies_d2h = get(g_counters.copies_d2h);
  out.copies_d2d = get(g_counters.copies_d2d);
  out.bytes_h2d = get(g_counters.bytes_h2d);
  out.bytes_d2h = get(g_counters.bytes_d2h);
  out.bytes_d2d = get(g_counters.bytes_d2d);
  out.fills = get(g_counters.fills);
  out.device_syncs = get(g_counters.device_syncs);
  out.stream_syncs = get(g_counters.stream_syncs);
  out.event_syncs = get(g_counters.event_syncs);
  return out;
}

void ResetRuntimeCounters() noexcept {
  for (auto* counter : {&g_counters.copies_h2d, &g_counters.copies_d2h, &g_counters.copies_d2d, &g_counters.bytes_h2d,
                        &g_counters.bytes_d2h, &g_counters.bytes_d2d, &g_counters.fills, &g_counters.device_syncs,
                        &g_counters.stream_syncs, &g_counters.event_syncs}) {
    counter->store(0, std::memory_order_relaxed);
  }
}

}  // namespace torch_fl::runtime
