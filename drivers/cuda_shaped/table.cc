// SPDX-License-Identifier: Apache-2.0
// The entry point. The caller copies the table before init opens the libraries, so an entry is NULL when the vendor has no
// such function at all; one that only this library version lacks answers FLAGOS_UNSUPPORTED.
#include <cstring>

#include "cuda_shaped/shared.h"

namespace flagos_cuda_shaped {
namespace {

constexpr size_t kAlignment = 256;  // what every member promises for its allocations

size_t MemoryAlignment() { return kAlignment; }

uint64_t Capabilities() {
  uint64_t bits = FLAGOS_CAP_ASYNC;
  if ((kVendor.quirks & kCurrentDeviceOnly) == 0) bits |= FLAGOS_CAP_UNIFIED_ADDRESS;
  const State* const state = g_state.load(std::memory_order_acquire);
  if (state == nullptr) return bits;
  const RuntimeFunctions& runtime = state->runtime;
  if (runtime.EventElapsedTime != nullptr) bits |= FLAGOS_CAP_EVENT_TIMING;
  if (runtime.StreamCreateWithPriority != nullptr && runtime.DeviceGetStreamPriorityRange != nullptr) {
    bits |= FLAGOS_CAP_STREAM_PRIORITY;
  }
  return bits;
}

// The vendor has such a function in some version.
bool InRuntime(const char* logical) {
  for (const NameRow& row : kVendor.runtime_names) {
    if (std::strcmp(row.logical, logical) == 0) return row.first != nullptr;
  }
  return true;
}

bool InDriver(const char* logical) {
  for (const NameRow& row : kVendor.driver_names) {
    if (std::strcmp(row.logical, logical) == 0) return true;
  }
  return false;
}

flagos_driver_v1_t MakeTable() {
  flagos_driver_v1_t t{};
  t.struct_size = sizeof t;
  t.abi_version = FLAGOS_DRIVER_ABI_VERSION;
  t.platform = kVendor.platform;
  t.implementation = kVendor.implementation;
  t.init = Init;
  t.capabilities = Capabilities;
  t.versions = Versions;
  t.device_count = DeviceCount;
  t.device_info = DeviceInfo;
  if (InRuntime("MemGetInfo")) t.device_memory = DeviceMemory;
  t.device_sync = DeviceSync;
  t.memory_alloc = MemoryAlloc;
  t.memory_free = MemoryFree;
  t.memory_alignment = MemoryAlignment;
  if (InRuntime("HostAlloc") && InRuntime("FreeHost")) {
    t.host_alloc = HostAlloc;
    t.host_free = HostFree;
  }
  if (InRuntime("HostRegister") && InRuntime("HostUnregister")) {
    t.host_register = HostRegister;
    t.host_unregister = HostUnregister;
  }
  t.pointer_info = PointerInfo;
  t.copy = Copy;
  t.fill = Fill;
  if (InRuntime("DeviceGetStreamPriorityRange")) t.stream_priority_range = StreamPriorityRange;
  t.stream_create = StreamCreate;
  t.stream_destroy = StreamDestroy;
  t.stream_query = StreamQuery;
  t.stream_sync = StreamSync;
  t.stream_wait = StreamWait;
  t.stream_native = StreamNative;
  t.stream_wrap = StreamWrap;
  if (InRuntime("LaunchHostFunc")) t.stream_host_func = StreamHostFunc;
  t.event_create = EventCreate;
  t.event_destroy = EventDestroy;
  t.event_record = EventRecord;
  t.event_query = EventQuery;
  t.event_sync = EventSync;
  if (InRuntime("EventElapsedTime")) t.event_elapsed = EventElapsed;
  if (InRuntime("DeviceCanAccessPeer") && InRuntime("DeviceEnablePeerAccess")) {
    t.peer_can_access = PeerCanAccess;
    t.peer_enable = PeerEnable;
  }
  t.last_error = flagos_sdk::LastError;
  if (InDriver("AddressReserve")) {
    t.memory_granularity = MemoryGranularity;
    t.memory_reserve = MemoryReserve;
    t.memory_release = MemoryRelease;
    t.memory_map = MemoryMap;
    t.memory_unmap = MemoryUnmap;
  }
  return t;
}

}  // namespace
}  // namespace flagos_cuda_shaped

extern "C" FLAGOS_EXPORT flagos_status_t flagos_driver_entry_v1(uint32_t abi_version,
                                                                const flagos_driver_v1_t** out_driver) {
  if (abi_version < FLAGOS_DRIVER_ABI_VERSION) {
    return flagos_sdk::Fail(FLAGOS_UNSUPPORTED, "flagos_driver_entry_v1", -1,
                            "the caller knows abi_version %u, this driver has %u", abi_version,
                            FLAGOS_DRIVER_ABI_VERSION);
  }
  static const flagos_driver_v1_t table = flagos_cuda_shaped::MakeTable();
  *out_driver = &table;
  return FLAGOS_OK;
}
