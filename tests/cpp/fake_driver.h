// SPDX-License-Identifier: Apache-2.0
// A driver that does nothing and says what it is told: layers are tested on it call by call.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "child.h"
#include "runtime/layers.h"

namespace torch_fl::test {

// One a process, as the layers themselves; every test runs in a child.
struct FakeDriver {
  std::vector<std::string> calls;         // entries that were reached, in order
  flagos_status_t next = FLAGOS_OK;       // of the next call that can fail; then OK again
  flagos_status_t query = FLAGOS_OK;      // of stream_query and event_query
  uintptr_t next_address = 0x100000;      // of the next block
  uintptr_t next_handle = 0x10;           // of the next stream or event
  std::deque<std::pair<flagos_host_func_t, void*>> host_functions;  // queued, not run
  flagos_error_t error{sizeof(flagos_error_t), FLAGOS_OK, -1, 0, "", ""};
  uint64_t capabilities =
      FLAGOS_CAP_ASYNC | FLAGOS_CAP_UNIFIED_ADDRESS | FLAGOS_CAP_HOST_VIEW | FLAGOS_CAP_EVENT_TIMING;

  flagos_status_t Reach(const char* entry) {
    calls.emplace_back(entry);
    return Result(std::exchange(next, FLAGOS_OK), entry);
  }
  flagos_status_t Result(flagos_status_t status, const char* entry) {
    if (status != FLAGOS_OK && status != FLAGOS_NOT_READY) {
      error = {sizeof(flagos_error_t), status, 0, 7, "the fake driver failed", entry};
    }
    return status;
  }
  flagos_status_t Hand(const char* entry, size_t size, void** out) {
    const flagos_status_t status = Reach(entry);
    if (status != FLAGOS_OK) return status;
    *out = size == 0 ? nullptr : reinterpret_cast<void*>(next_address);
    next_address += (size + 0xFFFF) / 0x10000 * 0x10000 + 0x10000;  // never touching
    return status;
  }
  template <class Handle>
  flagos_status_t Make(const char* entry, Handle* out) {
    const flagos_status_t status = Reach(entry);
    if (status == FLAGOS_OK) *out = reinterpret_cast<Handle>(std::exchange(next_handle, next_handle + 0x10));
    return status;
  }
};

inline FakeDriver& Fake() {
  static FakeDriver driver;
  return driver;
}

inline flagos_driver_v1_t FakeTable() {
  flagos_driver_v1_t t{};
  t.struct_size = sizeof t;
  t.abi_version = FLAGOS_DRIVER_ABI_VERSION;
  t.platform = "fake";
  t.implementation = "fake";
  t.init = [](const flagos_option_t*, size_t) { return Fake().Reach("init"); };
  t.capabilities = [] { return Fake().capabilities; };
  t.versions = [](int64_t* a, int64_t* b) { return *a = *b = 1, Fake().Reach("versions"); };
  t.device_count = [](int32_t* out) { return *out = 2, Fake().Reach("device_count"); };
  t.device_info = [](int32_t, flagos_device_info_t*) { return Fake().Reach("device_info"); };
  t.device_memory = [](int32_t, uint64_t* a, uint64_t* b) { return *a = *b = 1, Fake().Reach("device_memory"); };
  t.device_sync = [](int32_t) { return Fake().Reach("device_sync"); };
  t.memory_alloc = [](int32_t, size_t size, void** out) { return Fake().Hand("memory_alloc", size, out); };
  t.memory_free = [](int32_t, void*) { return Fake().Reach("memory_free"); };
  t.memory_alignment = [] { return size_t{64}; };
  t.host_view_offset = [](int32_t, ptrdiff_t* out) { return *out = 0, Fake().Reach("host_view_offset"); };
  t.host_alloc = [](size_t size, void** out) { return Fake().Hand("host_alloc", size, out); };
  t.host_free = [](void*) { return Fake().Reach("host_free"); };
  t.host_register = [](void*, size_t) { return Fake().Reach("host_register"); };
  t.host_unregister = [](void*) { return Fake().Reach("host_unregister"); };
  t.pointer_info = [](const void*, flagos_pointer_info_t*) { return Fake().Reach("pointer_info"); };
  t.access_fault_take = [](flagos_access_fault_t*) { return Fake().Reach("access_fault_take"); };
  t.copy = [](void*, int32_t, const void*, int32_t, size_t, flagos_stream_t) { return Fake().Reach("copy"); };
  t.fill = [](void*, int32_t, uint8_t, size_t, flagos_stream_t) { return Fake().Reach("fill"); };
  t.stream_priority_range = [](int32_t, int32_t* a, int32_t* b) {
    return *a = *b = 0, Fake().Reach("stream_priority_range");
  };
  t.stream_create = [](int32_t, uint32_t, int32_t, flagos_stream_t* out) { return Fake().Make("stream_create", out); };
  t.stream_destroy = [](flagos_stream_t) { return Fake().Reach("stream_destroy"); };
  t.stream_query = [](flagos_stream_t) { return Fake().Reach("stream_query"), Fake().query; };
  t.stream_sync = [](flagos_stream_t) { return Fake().Reach("stream_sync"); };
  t.stream_wait = [](flagos_stream_t, flagos_event_t) { return Fake().Reach("stream_wait"); };
  t.stream_wrap = [](int32_t, void*, flagos_stream_t* out) { return Fake().Make("stream_wrap", out); };
  t.stream_host_func = [](flagos_stream_t, flagos_host_func_t func, void* data) {
    const flagos_status_t status = Fake().Reach("stream_host_func");
    if (status == FLAGOS_OK) Fake().host_functions.emplace_back(func, data);
    return status;
  };
  t.event_create = [](int32_t, uint32_t, flagos_event_t* out) { return Fake().Make("event_create", out); };
  t.event_destroy = [](flagos_event_t) { return Fake().Reach("event_destroy"); };
  t.event_record = [](flagos_event_t, flagos_stream_t) { return Fake().Reach("event_record"); };
  t.event_query = [](flagos_event_t) { return Fake().Reach("event_query"), Fake().query; };
  t.event_sync = [](flagos_event_t) { return Fake().Reach("event_sync"); };
  t.event_elapsed = [](flagos_event_t, flagos_event_t, float* out) { return *out = 1, Fake().Reach("event_elapsed"); };
  t.peer_can_access = [](int32_t, int32_t, int32_t* out) { return *out = 1, Fake().Reach("peer_can_access"); };
  t.peer_enable = [](int32_t, int32_t) { return Fake().Reach("peer_enable"); };
  t.last_error = [] { return const_cast<const flagos_error_t*>(&Fake().error); };
  t.memory_granularity = [](int32_t, size_t* out) { return *out = 0x1000, Fake().Reach("memory_granularity"); };
  t.memory_reserve = [](int32_t, size_t size, void** out) { return Fake().Hand("memory_reserve", size, out); };
  t.memory_release = [](int32_t, void*, size_t) { return Fake().Reach("memory_release"); };
  t.memory_map = [](int32_t, void*, size_t) { return Fake().Reach("memory_map"); };
  t.memory_unmap = [](int32_t, void*, size_t) { return Fake().Reach("memory_unmap"); };
  return t;
}

// With the entries for kernels in place too.
inline flagos_driver_v1_t FullFake() {
  flagos_driver_v1_t full = FakeTable();
  full.kernel_begin = [](flagos_stream_t) { return Fake().Reach("kernel_begin"); };
  full.kernel_end = [](flagos_stream_t, const flagos_kernel_t*) { return Fake().Reach("kernel_end"); };
  return full;
}

// The fake driver in layers. Once a process.
inline const flagos_driver_v1_t& InLayers(const char* layers, const flagos_driver_v1_t& driver) {
  static flagos_driver_v1_t kept;
  kept = driver;
  return runtime::WrapDriver(kept, runtime::ParseLayers(layers));
}
inline const flagos_driver_v1_t& InLayers(const char* layers) { return InLayers(layers, FakeTable()); }

inline void* Block(const flagos_driver_v1_t& t, size_t size, int device = 0) {
  void* block = nullptr;
  EXPECT_EQ(t.memory_alloc(device, size, &block), FLAGOS_OK);
  return block;
}
inline flagos_stream_t NewStream(const flagos_driver_v1_t& t, int device = 0) {
  flagos_stream_t stream = nullptr;
  EXPECT_EQ(t.stream_create(device, FLAGOS_STREAM_DEFAULT, 0, &stream), FLAGOS_OK);
  return stream;
}
inline flagos_event_t NewEvent(const flagos_driver_v1_t& t, int device = 0, uint32_t flags = FLAGOS_EVENT_DEFAULT) {
  flagos_event_t event = nullptr;
  EXPECT_EQ(t.event_create(device, flags, &event), FLAGOS_OK);
  return event;
}
inline char* At(void* pointer, size_t offset) { return static_cast<char*>(pointer) + offset; }

inline flagos_status_t RunKernel(const flagos_driver_v1_t& t, flagos_stream_t stream, const char* name,
                                 const std::vector<flagos_access_t>& accesses) {
  if (const flagos_status_t status = t.kernel_begin(stream); status != FLAGOS_OK) return status;
  const flagos_kernel_t kernel{sizeof kernel, name, accesses.data(), accesses.size()};
  return t.kernel_end(stream, &kernel);
}

inline std::string Text(const flagos_driver_v1_t& t) { return t.last_error()->vendor_text; }

}  // namespace torch_fl::test
