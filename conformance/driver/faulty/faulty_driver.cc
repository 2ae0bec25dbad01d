// SPDX-License-Identifier: Apache-2.0
// The host driver with one planted fault, to show that the suite sees it: FLAGOS_FAULTY_BUG=<name>. Every other option
// goes to the host driver. tests/python/test_driver_suite.py says which test must catch which fault.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "torch_fl/driver.h"

namespace {

const flagos_driver_v1_t* g_host = nullptr;
flagos_driver_v1_t g_table;

flagos_status_t DropWait(flagos_stream_t, flagos_event_t) { return FLAGOS_OK; }

flagos_status_t EventsAreComplete(flagos_event_t) { return FLAGOS_OK; }

flagos_status_t SyncDoesNothing(flagos_stream_t) { return FLAGOS_OK; }

flagos_status_t DeviceSyncDoesNothing(int32_t device) {
  flagos_device_info_t info{};
  info.struct_size = sizeof info.struct_size;
  return g_host->device_info(device, &info);  // still refuses a bad device
}

flagos_status_t CopyLosesAByte(void* dst, int32_t dst_device, const void* src, int32_t src_device, size_t size,
                               flagos_stream_t stream) {
  return g_host->copy(dst, dst_device, src, src_device, size > 4096 ? size - 1 : size, stream);
}

flagos_status_t CopyIgnoresStream(void* dst, int32_t dst_device, const void* src, int32_t src_device, size_t size,
                                  flagos_stream_t) {
  return g_host->copy(dst, dst_device, src, src_device, size, nullptr);
}

flagos_status_t CopySwapsSides(void* dst, int32_t dst_device, const void* src, int32_t src_device, size_t size,
                               flagos_stream_t stream) {
  if (dst_device < 0 || src_device < 0 || dst_device == src_device) {
    return g_host->copy(dst, dst_device, src, src_device, size, stream);
  }
  return g_host->copy(const_cast<void*>(src), src_device, dst, dst_device, size, stream);
}

flagos_status_t FillIgnoresItsErrors(void* dst, int32_t device, uint8_t value, size_t size, flagos_stream_t stream) {
  g_host->fill(dst, device, value, size, stream);
  return FLAGOS_OK;
}

// The driver's "current device": set by one call, believed by the next.
flagos_status_t AllocOnCurrentDevice(int32_t device, size_t size, void** out_pointer) {
  static std::atomic<int32_t> current{0};
  return g_host->memory_alloc(current.exchange(device), size, out_pointer);
}

flagos_status_t AllocUnaligned(int32_t device, size_t size, void** out_pointer) {
  void* pointer = nullptr;
  const flagos_status_t status = g_host->memory_alloc(device, size == 0 ? 0 : size + 8, &pointer);
  if (status == FLAGOS_OK) *out_pointer = pointer != nullptr ? static_cast<char*>(pointer) + 8 : nullptr;
  return status;
}

flagos_status_t FreeAcceptsAll(int32_t device, void* pointer) {
  g_host->memory_free(device, pointer);
  return FLAGOS_OK;
}

flagos_status_t DestroyLeaks(flagos_event_t) { return FLAGOS_OK; }

flagos_status_t RecordOnlyOnce(flagos_event_t event, flagos_stream_t stream) {
  static auto* const recorded = new std::map<flagos_event_t, bool>;  // its test is single-threaded
  bool& before = (*recorded)[event];
  if (before) return FLAGOS_OK;
  before = true;
  return g_host->event_record(event, stream);
}

flagos_status_t HostFuncAtOnce(flagos_stream_t stream, flagos_host_func_t func, void* user_data) {
  if (func == nullptr) return g_host->stream_host_func(stream, func, user_data);
  const flagos_status_t status = g_host->stream_sync(stream);
  if (status == FLAGOS_OK) func(user_data);
  return status;
}

flagos_status_t InfoIgnoresItsSize(int32_t device, flagos_device_info_t* info) {
  const uint32_t size = info->struct_size;
  info->struct_size = sizeof *info;
  const flagos_status_t status = g_host->device_info(device, info);
  info->struct_size = size;
  return status;
}

const flagos_error_t* OneErrorForAllThreads() {
  static flagos_error_t error{sizeof(flagos_error_t), FLAGOS_OK, -1, 0, "", ""};
  static char text[256];
  const flagos_error_t* own = g_host->last_error();
  if (own->status != FLAGOS_OK) {
    error = *own;
    std::strncpy(text, own->vendor_text, sizeof text - 1);
    error.vendor_text = text;
  }
  return &error;
}

flagos_status_t ElapsedBackwards(flagos_event_t start, flagos_event_t end, float* out_ms) {
  const flagos_status_t status = g_host->event_elapsed(start, end, out_ms);
  if (status == FLAGOS_OK) *out_ms = -*out_ms - 1;
  return status;
}

flagos_status_t HangsInSync(flagos_event_t event) {
  if (event == nullptr) return g_host->event_sync(event);
  for (;;) {
  }
}

flagos_status_t CrashesInRange(int32_t, int32_t*, int32_t*) { __builtin_trap(); }

void Exit() {
  for (;;) {
  }
}

const std::map<std::string, void (*)()>& Bugs() {
  static const auto* const bugs = new std::map<std::string, void (*)()>{
      {"drop_wait", [] { g_table.stream_wait = DropWait; }},
      {"events_are_complete", [] { g_table.event_query = EventsAreComplete; }},
      {"stream_sync_does_nothing", [] { g_table.stream_sync = SyncDoesNothing; }},
      {"device_sync_does_nothing", [] { g_table.device_sync = DeviceSyncDoesNothing; }},
      {"copy_loses_a_byte", [] { g_table.copy = CopyLosesAByte; }},
      {"copy_ignores_stream", [] { g_table.copy = CopyIgnoresStream; }},
      {"copy_swaps_sides", [] { g_table.copy = CopySwapsSides; }},
      {"fill_ignores_errors", [] { g_table.fill = FillIgnoresItsErrors; }},
      {"alloc_on_current_device", [] { g_table.memory_alloc = AllocOnCurrentDevice; }},
      {"alloc_unaligned", [] { g_table.memory_alloc = AllocUnaligned; }},
      {"free_accepts_all", [] { g_table.memory_free = FreeAcceptsAll; }},
      {"event_destroy_leaks", [] { g_table.event_destroy = DestroyLeaks; }},
      {"record_only_once", [] { g_table.event_record = RecordOnlyOnce; }},
      {"host_func_at_once", [] { g_table.stream_host_func = HostFuncAtOnce; }},
      {"info_ignores_size", [] { g_table.device_info = InfoIgnoresItsSize; }},
      {"one_error_for_all", [] { g_table.last_error = OneErrorForAllThreads; }},
      {"elapsed_backwards", [] { g_table.event_elapsed = ElapsedBackwards; }},
      {"hangs_in_sync", [] { g_table.event_sync = HangsInSync; }},
      {"crashes_in_range", [] { g_table.stream_priority_range = CrashesInRange; }},
      {"exit_hangs", [] { g_table.at_exit = Exit; }},
      {"half_a_pair", [] { g_table.host_free = nullptr; }},
  };
  return *bugs;
}

flagos_status_t Init(const flagos_option_t* options, size_t option_count) {
  std::vector<flagos_option_t> others;
  for (size_t i = 0; i < option_count; ++i) {
    if (std::strcmp(options[i].key, "bug") != 0) others.push_back(options[i]);
  }
  return g_host->init(others.data(), others.size());
}

}  // namespace

extern "C" FLAGOS_EXPORT flagos_status_t flagos_driver_entry_v1(uint32_t abi_version,
                                                                const flagos_driver_v1_t** out_driver) {
  if (g_host == nullptr) {
    void* library = dlopen(SUITE_HOST_DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return FLAGOS_LIBRARY_MISSING;
    const auto entry = reinterpret_cast<flagos_driver_entry_t>(dlsym(library, FLAGOS_DRIVER_ENTRY_SYMBOL));
    if (entry == nullptr) return FLAGOS_SYMBOL_MISSING;
    if (const flagos_status_t status = entry(abi_version, &g_host); status != FLAGOS_OK) return status;
    g_table = *g_host;
    g_table.platform = "faulty";
    g_table.init = Init;
    const char* bug = getenv("FLAGOS_FAULTY_BUG");
    const auto found = Bugs().find(bug != nullptr ? bug : "");
    if (found == Bugs().end()) return FLAGOS_INVALID_VALUE;
    found->second();
  }
  if (abi_version < FLAGOS_DRIVER_ABI_VERSION) return FLAGOS_UNSUPPORTED;
  *out_driver = &g_table;
  return FLAGOS_OK;
}
