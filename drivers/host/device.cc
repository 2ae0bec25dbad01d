// SPDX-License-Identifier: Apache-2.0
#include <sys/utsname.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "host/host.h"

namespace flagos_host {

flagos_status_t DeviceCount(int32_t* out_count) {
  return Guarded("device_count", [&] {
    *out_count = TheState().config.devices;
    return FLAGOS_OK;
  });
}

flagos_status_t DeviceInfo(int32_t device, flagos_device_info_t* info) {
  return Guarded("device_info", [&] {
    if (const flagos_status_t status = CheckDevice("device_info", device); status != FLAGOS_OK) return status;
    flagos_device_info_t full{};
    full.struct_size = info->struct_size;
    full.valid = FLAGOS_INFO_NAME | FLAGOS_INFO_TOTAL_MEMORY | FLAGOS_INFO_COMPUTE_UNITS;
    std::snprintf(full.name, sizeof full.name, "simulated accelerator %d", device);
    utsname system{};
    if (uname(&system) == 0) {
      std::snprintf(full.arch, sizeof full.arch, "%.63s", system.machine);
      full.valid |= FLAGOS_INFO_ARCH;
    }
    full.total_memory = TheState().config.memory;
    full.compute_units = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
    std::memcpy(info, &full, std::min<size_t>(info->struct_size, sizeof full));
    return FLAGOS_OK;
  });
}

flagos_status_t DeviceMemory(int32_t device, uint64_t* out_free, uint64_t* out_total) {
  return Guarded("device_memory", [&] {
    if (const flagos_status_t status = CheckDevice("device_memory", device); status != FLAGOS_OK) return status;
    Device& state = TheState().devices[static_cast<size_t>(device)];
    const std::lock_guard lock(state.mutex);
    *out_total = TheState().config.memory;
    *out_free = *out_total - state.used;
    return FLAGOS_OK;
  });
}

flagos_status_t PeerCanAccess(int32_t device, int32_t peer, int32_t* out_can) {
  return Guarded("peer_can_access", [&] {
    for (const int32_t side : {device, peer}) {
      if (const flagos_status_t status = CheckDevice("peer_can_access", side); status != FLAGOS_OK) return status;
    }
    *out_can = device != peer;
    return FLAGOS_OK;
  });
}

flagos_status_t PeerEnable(int32_t device, int32_t peer) {
  return Guarded("peer_enable", [&] {
    for (const int32_t side : {device, peer}) {
      if (const flagos_status_t status = CheckDevice("peer_enable", side); status != FLAGOS_OK) return status;
    }
    if (device == peer) {
      return Fail(FLAGOS_INVALID_VALUE, "peer_enable", device, "device %d is not its own peer", device);
    }
    const uint64_t bit = uint64_t{1} << peer;
    const uint64_t before = TheState().peers_enabled[device].fetch_or(bit);
    if ((before & bit) == 0) return FLAGOS_OK;
    return Fail(FLAGOS_ALREADY, "peer_enable", device, "access from device %d to %d is enabled already", device, peer);
  });
}

}  // namespace flagos_host
