// SPDX-License-Identifier: Apache-2.0
// The device scope, and what can be asked of a device.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "cuda_shaped/shared.h"

namespace flagos_cuda_shaped {
namespace {

Device& DeviceOf(int device) { return TheState().devices[static_cast<size_t>(device)]; }

// The primary context, which the vendor's runtime and every other library share. Kept for good: giving it back while
// another library works in it would end that library's work.
flagos_status_t ContextOf(const Where& where, VendorContext* out) {
  Device& device = DeviceOf(where.device);
  *out = device.context.load(std::memory_order_acquire);
  if (*out != nullptr) [[likely]]
    return FLAGOS_OK;
  const std::lock_guard lock(device.mutex);
  *out = device.context.load(std::memory_order_relaxed);
  if (*out != nullptr) return FLAGOS_OK;
  const flagos_status_t status = CUDA_SHAPED_DRV(where, ContextRetain, out, where.device);
  if (status == FLAGOS_OK) device.context.store(*out, std::memory_order_release);
  return status;
}

void MarkUsed(int device) {
  if (DeviceOf(device).used.load(std::memory_order_relaxed)) [[likely]]
    return;
  DeviceOf(device).used.store(true);
  int none = -1;
  TheState().first_used.compare_exchange_strong(none, device);
}

bool Attribute(int number, int device, int32_t* out) {
  int value = 0;
  if (number < 0 || Rt().DeviceGetAttribute == nullptr) return false;
  if (CUDA_SHAPED_RT((Where{"device_info", device}), DeviceGetAttribute, &value, number, device) != FLAGOS_OK) {
    return false;
  }
  *out = value;
  return true;
}

bool Name(int device, char* out, size_t size) {
  const Where where{"device_info", device};
  if (Drv().DeviceName != nullptr) {
    return CUDA_SHAPED_DRV(where, DeviceName, out, static_cast<int>(size), device) == FLAGOS_OK;
  }
  if (Rt().GetDeviceProperties == nullptr) return false;
  // The structure has another size in every version; the name comes first in all of them.
  char properties[4096] = {};
  if (CUDA_SHAPED_RT(where, GetDeviceProperties, properties, device) != FLAGOS_OK) return false;
  std::snprintf(out, size, "%.*s", static_cast<int>(size - 1), properties);
  return true;
}

bool Address(int device, char* out, size_t size) {
  return Rt().DeviceGetPCIBusId != nullptr && CUDA_SHAPED_RT((Where{"device_info", device}), DeviceGetPCIBusId, out,
                                                             static_cast<int>(size), device) == FLAGOS_OK;
}

bool TotalMemory(int device, uint64_t* out) {
  size_t total = 0;
  if (Drv().DeviceTotalMemory == nullptr) return false;
  if (CUDA_SHAPED_DRV((Where{"device_info", device}), DeviceTotalMemory, &total, device) != FLAGOS_OK) return false;
  *out = total;
  return true;
}

}  // namespace

DeviceScope::DeviceScope(const Where& where) {
  if (TheState().contexts) {
    VendorContext wanted = nullptr;
    VendorContext current = nullptr;
    status_ = ContextOf(where, &wanted);
    if (status_ == FLAGOS_OK) status_ = CUDA_SHAPED_DRV(where, ContextCurrent, &current);
    if (status_ == FLAGOS_OK && current != wanted) {
      // Not SetDevice: putting back a device without a context would make one there, a few hundred MB in every process.
      status_ = CUDA_SHAPED_DRV(where, ContextPush, wanted);
      pushed_ = status_ == FLAGOS_OK;
    }
  } else {
    int current = -1;
    status_ = CUDA_SHAPED_RT(where, GetDevice, &current);
    if (status_ == FLAGOS_OK && current != where.device) {
      status_ = CUDA_SHAPED_RT(where, SetDevice, where.device);
      if (status_ == FLAGOS_OK) before_ = current;
    }
  }
  if (status_ == FLAGOS_OK) MarkUsed(where.device);
}

// Nothing can be done about a failure here, and it must not replace the call's own error.
DeviceScope::~DeviceScope() {
  VendorContext popped = nullptr;
  if (pushed_) Drv().ContextPop(&popped);
  if (before_ >= 0 && Rt().SetDevice(before_) != 0) Rt().GetLastError();
}

bool ContextExists(int device) {
  if (DeviceOf(device).used.load(std::memory_order_acquire)) return true;
  unsigned flags = 0;
  int active = 0;
  return Drv().ContextState != nullptr && Drv().ContextState(device, &flags, &active) == 0 && active != 0;
}

int AnyDevice() { return std::max(TheState().first_used.load(std::memory_order_relaxed), 0); }

flagos_status_t SyncDevice(const Where& where) {
  const DeviceScope scope(where);
  return scope.status() == FLAGOS_OK ? CUDA_SHAPED_RT(where, DeviceSynchronize) : scope.status();
}

flagos_status_t SyncUsedDevices(const char* function) {
  const int count = TheState().count.load(std::memory_order_relaxed);
  for (int device = 0; device < count; ++device) {
    if (!DeviceOf(device).used.load(std::memory_order_acquire)) continue;
    if (const flagos_status_t status = SyncDevice({function, device}); status != FLAGOS_OK) return status;
  }
  return FLAGOS_OK;
}

flagos_status_t QueueFor(const Where& where, const Handle& stream, VendorStream* out) {
  if (stream.valid) {
    *out = stream.native;
    return FLAGOS_OK;
  }
  if (const flagos_status_t status = CUDA_SHAPED_RT(where, DeviceSynchronize); status != FLAGOS_OK) return status;
  Device& device = DeviceOf(where.device);
  *out = device.calls.load(std::memory_order_acquire);
  if (*out != nullptr) return FLAGOS_OK;
  const std::lock_guard lock(device.mutex);
  *out = device.calls.load(std::memory_order_relaxed);
  if (*out != nullptr) return FLAGOS_OK;
  const flagos_status_t status = CUDA_SHAPED_RT(where, StreamCreateWithFlags, out, kStreamNonBlocking);
  if (status == FLAGOS_OK) device.calls.store(*out, std::memory_order_release);
  return status;
}

flagos_status_t FinishCall(const Where& where, const Handle& stream, VendorStream queue) {
  return stream.valid ? FLAGOS_OK : CUDA_SHAPED_RT(where, StreamSynchronize, queue);
}

flagos_status_t DeviceCount(int32_t* out_count) {
  return Guarded("device_count", [&] {
    State& state = TheState();
    if (!state.absent.empty()) {
      // No failure; the reason is there for whoever asks.
      Fail(FLAGOS_NO_DEVICE, "device_count", -1, "%s", state.absent.c_str());
    } else if (state.count.load(std::memory_order_acquire) < 0) {
      const int quiet = kVendor.count_quietly != nullptr && state.own_driver ? kVendor.count_quietly() : -1;
      int unknown = -1;
      if (quiet >= 0) state.count.compare_exchange_strong(unknown, std::min(quiet, kMaxDevices));
      if (quiet < 0) {
        if (const flagos_status_t status = Touch("device_count"); status != FLAGOS_OK) return status;
      }
    }
    *out_count = state.count.load(std::memory_order_acquire);
    return FLAGOS_OK;
  });
}

flagos_status_t DeviceInfo(int32_t device, flagos_device_info_t* info) {
  return Guarded("device_info", [&] {
    if (const flagos_status_t status = CheckDevice({"device_info", device}); status != FLAGOS_OK) return status;
    flagos_device_info_t full{};
    full.struct_size = info->struct_size;
    if (Name(device, full.name, sizeof full.name)) full.valid |= FLAGOS_INFO_NAME;
    if (TotalMemory(device, &full.total_memory)) full.valid |= FLAGOS_INFO_TOTAL_MEMORY;
    const AttributeNumbers& numbers = kVendor.attributes;
    if (Attribute(numbers.capability_major, device, &full.capability_major) &&
        Attribute(numbers.capability_minor, device, &full.capability_minor)) {
      full.valid |= FLAGOS_INFO_CAPABILITY;
      if (kVendor.arch_format != nullptr) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        std::snprintf(full.arch, sizeof full.arch, kVendor.arch_format, full.capability_major, full.capability_minor);
#pragma GCC diagnostic pop
        full.valid |= FLAGOS_INFO_ARCH;
      }
    }
    if (Attribute(numbers.compute_units, device, &full.compute_units)) full.valid |= FLAGOS_INFO_COMPUTE_UNITS;
    if (Attribute(numbers.warp_size, device, &full.warp_size)) full.valid |= FLAGOS_INFO_WARP_SIZE;
    if (Address(device, full.pci, sizeof full.pci)) full.valid |= FLAGOS_INFO_PCI;
    std::memcpy(info, &full, std::min<size_t>(info->struct_size, sizeof full));
    return FLAGOS_OK;
  });
}

// Asking the runtime library makes a context, so only where there is one already.
flagos_status_t DeviceMemory(int32_t device, uint64_t* out_free, uint64_t* out_total) {
  return Guarded("device_memory", [&] {
    const Where where{"device_memory", device};
    if (const flagos_status_t status = CheckDevice(where); status != FLAGOS_OK) return status;
    if (!ContextExists(device)) {
      char address[32] = {};
      uint64_t total = 0;
      if (kVendor.memory_quietly != nullptr && TheState().own_driver && Address(device, address, sizeof address) &&
          kVendor.memory_quietly(address, out_free, out_total)) {
        // The monitor counts memory that a context never gets to see.
        if (TotalMemory(device, &total)) *out_total = total;
        *out_free = std::min(*out_free, *out_total);
        return FLAGOS_OK;
      }
      if (TotalMemory(device, &total)) {
        *out_free = *out_total = total;
        return FLAGOS_OK;
      }
    }
    const DeviceScope scope(where);
    if (scope.status() != FLAGOS_OK) return scope.status();
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    const flagos_status_t status = CUDA_SHAPED_RT(where, MemGetInfo, &free_bytes, &total_bytes);
    if (status != FLAGOS_OK) return status;
    *out_free = free_bytes;
    *out_total = total_bytes;
    return FLAGOS_OK;
  });
}

flagos_status_t DeviceSync(int32_t device) {
  return Guarded("device_sync", [&] {
    const Where where{"device_sync", device};
    if (const flagos_status_t status = CheckDevice(where); status != FLAGOS_OK) return status;
    return ContextExists(device) ? SyncDevice(where) : FLAGOS_OK;  // without one nothing was ever queued
  });
}

flagos_status_t Versions(int64_t* out_driver, int64_t* out_runtime) {
  return Guarded("versions", [&] {
    const Where where{"versions"};
    int driver = 0;  // 0: unknown, as on a machine without the libraries
    int runtime = 0;
    flagos_status_t status = FLAGOS_OK;
    if (Drv().DriverVersion != nullptr) {
      status = CUDA_SHAPED_DRV(where, DriverVersion, &driver);
    } else if (Rt().DriverGetVersion != nullptr) {
      status = CUDA_SHAPED_RT(where, DriverGetVersion, &driver);
    }
    if (status == FLAGOS_OK && Rt().RuntimeGetVersion != nullptr) {
      status = CUDA_SHAPED_RT(where, RuntimeGetVersion, &runtime);
    }
    if (status != FLAGOS_OK) return status;
    *out_driver = driver;
    *out_runtime = runtime;
    return FLAGOS_OK;
  });
}

// ---- Peers

namespace {

// Bit p of entry d: device p may reach the memory of d.
std::array<std::atomic<uint64_t>, kMaxDevices> g_peers;

}  // namespace

uint64_t PeersOf(int device) { return g_peers[static_cast<size_t>(device)].load(std::memory_order_acquire); }

flagos_status_t PeerCanAccess(int32_t device, int32_t peer, int32_t* out_can) {
  return Guarded("peer_can_access", [&] {
    const Where where{"peer_can_access", device};
    if (const flagos_status_t status = CheckDevice(where); status != FLAGOS_OK) return status;
    if (const flagos_status_t status = CheckDevice({"peer_can_access", peer}); status != FLAGOS_OK) return status;
    int can = 0;
    flagos_status_t status = FLAGOS_OK;
    if (device != peer && Drv().DevicePeerReachable != nullptr) {
      status = CUDA_SHAPED_DRV(where, DevicePeerReachable, &can, device, peer);
    } else if (device != peer) {
      status = CUDA_SHAPED_RT(where, DeviceCanAccessPeer, &can, device, peer);
    }
    if (status == FLAGOS_OK) *out_can = can;
    return status;
  });
}

flagos_status_t PeerEnable(int32_t device, int32_t peer) {
  return Guarded("peer_enable", [&] {
    const Where where{"peer_enable", device};
    if (const flagos_status_t status = CheckDevice({"peer_enable", peer}); status != FLAGOS_OK) return status;
    if (const flagos_status_t status = CheckDevice(where); status != FLAGOS_OK) return status;
    if (device == peer) return Fail(FLAGOS_INVALID_VALUE, "peer_enable", device, "a device is no peer of itself");
    {
      const DeviceScope scope(where);
      if (scope.status() != FLAGOS_OK) return scope.status();
      const flagos_status_t status = CUDA_SHAPED_RT(where, DeviceEnablePeerAccess, peer, 0u);
      if (status != FLAGOS_OK) return status;
    }
    g_peers[static_cast<size_t>(peer)].fetch_or(uint64_t{1} << (device & (kMaxDevices - 1)));
    return OpenMappings(where, peer);
  });
}

}  // namespace flagos_cuda_shaped
