// SPDX-License-Identifier: Apache-2.0
// The entry point, init and its options, fork.
#include <pthread.h>
#include <unistd.h>

#include <cctype>
#include <charconv>
#include <cstring>
#include <string>

#include "host/host.h"

namespace flagos_host {

std::atomic<State*> g_state{nullptr};
std::atomic<bool> g_forked{false};

namespace {

constexpr const char* kKnownOptions =
    "devices (0..64), memory (bytes, suffix K, M, G or T), protect, poison, misalign (0 or 1), queue (eager or lazy)";

flagos_status_t RefuseOption(const flagos_option_t& option, const char* known) {
  return Fail(FLAGOS_INVALID_VALUE, "init", -1, "option %s=%s is not understood; use %s", option.key, option.value,
              known);
}

bool ParseFlag(const char* text, bool* out) {
  std::string word = text;
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const bool yes = word == "1" || word == "true" || word == "on" || word == "yes";
  const bool no = word == "0" || word == "false" || word == "off" || word == "no";
  *out = yes;
  return yes || no;
}

bool ParseBytes(const char* text, uint64_t* out) {
  const char* end = text + std::strlen(text);
  uint64_t number = 0;
  const auto [rest, error] = std::from_chars(text, end, number);
  if (error != std::errc() || end - rest > 1) return false;
  int shift = 0;
  if (rest != end) {
    constexpr std::string_view kSuffixes = "KMGT";
    const size_t found = kSuffixes.find(static_cast<char>(std::toupper(static_cast<unsigned char>(*rest))));
    if (found == std::string_view::npos) return false;
    shift = 10 * static_cast<int>(found + 1);
  }
  // 2^44 bytes for each of 64 devices still fit the address space.
  if (number == 0 || number > ((uint64_t{1} << 44) >> shift)) return false;
  *out = number << shift;
  return true;
}

flagos_status_t ParseOption(const flagos_option_t& option, Config* config) {
  const std::string key = option.key;
  if (key == "devices") {
    const char* end = option.value + std::strlen(option.value);
    const auto [rest, error] = std::from_chars(option.value, end, config->devices);
    if (error != std::errc() || rest != end || config->devices < 0 || config->devices > kMaxDevices) {
      return RefuseOption(option, "a number from 0 to 64");
    }
    return FLAGOS_OK;
  }
  if (key == "memory") {
    if (ParseBytes(option.value, &config->memory)) return FLAGOS_OK;
    return RefuseOption(option, "a positive number of bytes up to 16T, with an optional suffix K, M, G or T");
  }
  if (key == "queue") {
    config->lazy = std::strcmp(option.value, "lazy") == 0;
    if (config->lazy || std::strcmp(option.value, "eager") == 0) return FLAGOS_OK;
    return RefuseOption(option, "eager or lazy");
  }
  bool* flag = key == "protect"    ? &config->protect
               : key == "poison"   ? &config->poison
               : key == "misalign" ? &config->misalign
                                   : nullptr;
  if (flag == nullptr) {
    return Fail(FLAGOS_INVALID_VALUE, "init", -1, "unknown option %s=%s; known: %s", option.key, option.value,
                kKnownOptions);
  }
  return ParseFlag(option.value, flag) ? FLAGOS_OK : RefuseOption(option, "1, true, on, yes or 0, false, off, no");
}

flagos_status_t Init(const flagos_option_t* options, size_t option_count) {
  try {
    if (g_state.load() != nullptr) return Fail(FLAGOS_ALREADY, "init", -1, "init was called before");
    auto state = std::make_unique<State>();
    for (size_t i = 0; i < option_count; ++i) {
      if (const flagos_status_t status = ParseOption(options[i], &state->config); status != FLAGOS_OK) return status;
    }
    if (state->config.memory == 0) {
      state->config.memory =
          static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    }
    g_state.store(state.release());
    return FLAGOS_OK;
  } catch (const std::exception& error) {
    return Fail(FLAGOS_OUT_OF_MEMORY, "init", -1, "host memory: %s", error.what());
  }
}

// The workers die with the process. What must not outlive the driver's promise is its signal handler.
void AtExit() { RemoveFaultHandler(); }

uint64_t Capabilities() {
  const State* state = g_state.load();
  uint64_t bits = FLAGOS_CAP_HOST_VIEW | FLAGOS_CAP_ASYNC | FLAGOS_CAP_EVENT_TIMING | FLAGOS_CAP_STREAM_PRIORITY |
                  FLAGOS_CAP_UNIFIED_ADDRESS;
  if (state != nullptr && state->config.lazy) bits |= FLAGOS_CAP_KERNEL_ORDER;
  if (state != nullptr && state->config.protect) bits |= FLAGOS_CAP_ACCESS_FAULTS;
  return bits;
}

const flagos_driver_v1_t* Table() {
  static const flagos_driver_v1_t table = [] {
    flagos_driver_v1_t t{};
    t.struct_size = sizeof t;
    t.abi_version = FLAGOS_DRIVER_ABI_VERSION;
    t.platform = "host";
    t.implementation = "simulated accelerator on host memory and threads";
    t.init = Init;
    t.at_exit = AtExit;
    t.capabilities = Capabilities;
    t.device_count = DeviceCount;
    t.device_info = DeviceInfo;
    t.device_memory = DeviceMemory;
    t.device_sync = DeviceSync;
    t.memory_alloc = MemoryAlloc;
    t.memory_free = MemoryFree;
    t.memory_alignment = MemoryAlignment;
    t.host_view_offset = HostViewOffset;
    t.memory_granularity = MemoryGranularity;
    t.memory_reserve = MemoryReserve;
    t.memory_release = MemoryRelease;
    t.memory_map = MemoryMap;
    t.memory_unmap = MemoryUnmap;
    t.host_alloc = HostAlloc;
    t.host_free = HostFree;
    t.host_register = HostRegister;
    t.host_unregister = HostUnregister;
    t.pointer_info = PointerInfo;
    t.access_fault_take = AccessFaultTake;
    t.copy = Copy;
    t.fill = Fill;
    t.stream_priority_range = StreamPriorityRange;
    t.stream_create = StreamCreate;
    t.stream_destroy = StreamDestroy;
    t.stream_query = StreamQuery;
    t.stream_sync = StreamSync;
    t.stream_wait = StreamWait;
    t.stream_native = StreamNative;
    t.stream_wrap = StreamWrap;
    t.stream_host_func = StreamHostFunc;
    t.event_create = EventCreate;
    t.event_destroy = EventDestroy;
    t.event_record = EventRecord;
    t.event_query = EventQuery;
    t.event_sync = EventSync;
    t.event_elapsed = EventElapsed;
    t.kernel_begin = KernelBegin;
    t.kernel_end = KernelEnd;
    t.peer_can_access = PeerCanAccess;
    t.peer_enable = PeerEnable;
    t.last_error = flagos_sdk::LastError;
    return t;
  }();
  return &table;
}

}  // namespace

void ArmFork() {
  // One atomic and nothing else may run in the child: other threads' locks can be held for ever there.
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { g_forked.store(true, std::memory_order_relaxed); });
  if (registered != 0) throw std::bad_alloc();
}

flagos_status_t CheckReady(const char* function) {
  if (g_state.load(std::memory_order_acquire) == nullptr) [[unlikely]] {
    return Fail(FLAGOS_NOT_INITIALIZED, function, -1, "init was not called");
  }
  if (g_forked.load(std::memory_order_relaxed)) [[unlikely]] {
    return Fail(FLAGOS_NOT_INITIALIZED, function, -1, "the device does not exist in a forked child; use spawn");
  }
  return FLAGOS_OK;
}

flagos_status_t CheckDevice(const char* function, int device) {
  const int count = TheState().config.devices;
  if (device >= 0 && device < count) return FLAGOS_OK;
  return Fail(FLAGOS_INVALID_DEVICE, function, device, "device %d is outside 0..%d", device, count - 1);
}

}  // namespace flagos_host

extern "C" FLAGOS_EXPORT flagos_status_t flagos_driver_entry_v1(uint32_t abi_version,
                                                                const flagos_driver_v1_t** out_driver) {
  if (abi_version < FLAGOS_DRIVER_ABI_VERSION) {
    return flagos_sdk::Fail(FLAGOS_UNSUPPORTED, "flagos_driver_entry_v1", -1,
                            "the caller knows abi_version %u, this driver has %u", abi_version,
                            FLAGOS_DRIVER_ABI_VERSION);
  }
  *out_driver = flagos_host::Table();
  return FLAGOS_OK;
}
