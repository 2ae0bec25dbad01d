// SPDX-License-Identifier: Apache-2.0
// init: which libraries were opened, what their functions and error numbers are; the first use; fork.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cuda_shaped/shared.h"

namespace flagos_cuda_shaped {

std::atomic<State*> g_state{nullptr};
std::atomic<bool> g_forked{false};

namespace {

std::atomic<bool> g_touching{false};  // set before the vendor library is initialised, never cleared

constexpr const char* kKnownOptions = "library, driver_library (paths), audit (0 or 1)";

struct Options {
  std::string library;
  std::string driver_library;
  bool audit = false;
};

flagos_status_t ParseOption(const flagos_option_t& option, Options* options) {
  const std::string key = option.key;
  if (key == "library") {
    options->library = option.value;
  } else if (key == "driver_library") {
    options->driver_library = option.value;
  } else if (key == "audit") {
    options->audit = std::strcmp(option.value, "1") == 0;
    if (!options->audit && std::strcmp(option.value, "0") != 0) {
      return Fail(FLAGOS_INVALID_VALUE, "init", -1, "option audit=%s is not understood; use 0 or 1", option.value);
    }
  } else {
    return Fail(FLAGOS_INVALID_VALUE, "init", -1, "unknown option %s=%s; known: %s", option.key, option.value,
                kKnownOptions);
  }
  return FLAGOS_OK;
}

// Empty when a device may be there.
std::string WhyAbsent() {
  std::string tried;
  for (const char* const node : kVendor.device_nodes) {
    if (access(node, F_OK) == 0) return {};
    tried += (tried.empty() ? "" : " nor ") + std::string(node);
  }
  return tried.empty() ? tried
                       : "no " + tried + ": this machine has no such device, or its kernel driver is not loaded";
}

std::vector<std::string> Candidates(const std::string& chosen, std::span<const char* const> usual) {
  if (!chosen.empty()) return {chosen};
  return {usual.begin(), usual.end()};
}

const NameRow* FindRow(std::span<const NameRow> rows, const char* logical) {
  for (const NameRow& row : rows) {
    if (std::strcmp(row.logical, logical) == 0) return &row;
  }
  return nullptr;
}

std::vector<std::string> RuntimeNames(const char* logical) {
  const NameRow* const row = FindRow(kVendor.runtime_names, logical);
  std::vector<std::string> names;
  if (row != nullptr && row->first != nullptr) names.emplace_back(row->first);
  if (row != nullptr && row->second != nullptr) names.emplace_back(row->second);
  if (row == nullptr) names.push_back(std::string(kVendor.prefix) + logical);
  return names;
}

std::vector<std::string> DriverNames(const char* logical) {
  const NameRow* const row = FindRow(kVendor.driver_names, logical);
  if (row == nullptr) return {};
  if (row->second == nullptr) return {row->first};
  return {row->first, row->second};
}

using Names = std::vector<std::string> (*)(const char* logical);

void AddRow(std::vector<flagos_sdk::Symbol>* rows, const char* logical, bool required, void** slot, Names names) {
  rows->push_back({logical, required, slot, names(logical)});
}

flagos_status_t OpenRuntime(State* state, const Options& options, const void* origin) {
  std::vector<flagos_sdk::Symbol> symbols;
#define CUDA_SHAPED_ADD(logical, required, arguments) \
  AddRow(&symbols, #logical, required, reinterpret_cast<void**>(&state->runtime.logical), RuntimeNames);
  CUDA_SHAPED_RUNTIME(CUDA_SHAPED_ADD)
#undef CUDA_SHAPED_ADD
  AddRow(&symbols, "GetErrorName", kOptional, reinterpret_cast<void**>(&state->runtime.GetErrorName), RuntimeNames);
  AddRow(&symbols, "GetErrorString", kOptional, reinterpret_cast<void**>(&state->runtime.GetErrorString), RuntimeNames);

  flagos_sdk::Audit& audit = state->runtime_audit;
  void* const library = flagos_sdk::OpenLibrary(Candidates(options.library, kVendor.runtime_libraries), origin, &audit);
  flagos_sdk::ResolveSymbols(library, symbols, &audit);
  if (library == nullptr) {
    return Fail(FLAGOS_LIBRARY_MISSING, "init", -1,
                "%s; install the runtime library, or give its path as option library", audit.reason.c_str());
  }
  if (const std::string missing = audit.MissingRequired(); !missing.empty()) {
    return Fail(FLAGOS_SYMBOL_MISSING, "init", -1, "%s does not export %s; option library chooses another",
                audit.library.c_str(), missing.c_str());
  }
  return FLAGOS_OK;
}

flagos_status_t OpenDriver(State* state, const Options& options, const void* origin) {
  std::vector<flagos_sdk::Symbol> symbols;
#define CUDA_SHAPED_ADD(logical, required, arguments) \
  AddRow(&symbols, #logical, required, reinterpret_cast<void**>(&state->driver.logical), DriverNames);
  CUDA_SHAPED_DRIVER(CUDA_SHAPED_ADD)
#undef CUDA_SHAPED_ADD
  AddRow(&symbols, "ErrorName", kOptional, reinterpret_cast<void**>(&state->driver.ErrorName), DriverNames);
  AddRow(&symbols, "ErrorString", kOptional, reinterpret_cast<void**>(&state->driver.ErrorString), DriverNames);

  const std::vector<std::string> candidates = Candidates(options.driver_library, kVendor.driver_libraries);
  flagos_sdk::Audit& audit = state->driver_audit;
  void* const library = candidates.empty() ? nullptr : flagos_sdk::OpenLibrary(candidates, origin, &audit);
  flagos_sdk::ResolveSymbols(library, symbols, &audit);
  if (library == nullptr && !candidates.empty()) {
    return Fail(FLAGOS_LIBRARY_MISSING, "init", -1,
                "%s; install the vendor's kernel driver package, or give the path "
                "as option driver_library",
                audit.reason.c_str());
  }
  const DriverFunctions& driver = state->driver;
  state->contexts = driver.ContextRetain != nullptr && driver.ContextCurrent != nullptr &&
                    driver.ContextPush != nullptr && driver.ContextPop != nullptr;
  return FLAGOS_OK;
}

// A library that can name its errors decides which number means what.
void ResolveErrors(State* state) {
  const auto is_named = [&](int code, const char* name) {
    if (code < 0 || state->runtime.GetErrorName == nullptr) return false;
    const char* const given = state->runtime.GetErrorName(code);
    return given != nullptr && std::strcmp(given, name) == 0;
  };
  for (const ErrorRow& row : kVendor.errors) {
    if (state->error_count == state->errors.size()) break;
    const int code = is_named(row.first, row.name) || !is_named(row.second, row.name) ? row.first : row.second;
    state->errors[state->error_count++] = {code, row.status};
  }
}

// The child may use the device unless the parent had begun to: then the vendor's library is unusable there for good.
void ArmFork() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    if (g_touching.load(std::memory_order_relaxed)) g_forked.store(true, std::memory_order_relaxed);
  });
  if (registered != 0) throw std::bad_alloc();
}

flagos_status_t AskCount(State* state, const Where& where) {
  int count = 0;
  // The driver library first: the runtime's count would also look for a current device.
  const bool below = state->driver.DeviceCount != nullptr;
  const int code = below ? state->driver.DeviceCount(&count) : state->runtime.GetDeviceCount(&count);
  const flagos_status_t status =
      below ? CheckDriver(where, "DeviceCount", code) : CheckRuntime(where, "GetDeviceCount", code);
  if (status == FLAGOS_NO_DEVICE) count = 0;
  if (status != FLAGOS_OK && status != FLAGOS_NO_DEVICE) return status;
  state->count.store(std::clamp(count, 0, kMaxDevices), std::memory_order_release);
  return FLAGOS_OK;
}

flagos_status_t StatusOf(int code) {
  const State& state = TheState();
  for (size_t i = 0; i < state.error_count; ++i) {
    if (state.errors[i].code == code) return state.errors[i].status;
  }
  return FLAGOS_VENDOR_ERROR;
}

flagos_status_t Record(const Where& where, const char* call, int code, const char* name, const char* words) {
  State& state = TheState();
  const flagos_status_t status = StatusOf(code);
  if (status == FLAGOS_DEVICE_LOST && where.device >= 0) {
    state.devices[static_cast<size_t>(where.device)].lost.store(code, std::memory_order_relaxed);
  }
  return flagos_sdk::FailVendor(status, where.function, where.device, code, "%s: %s (%s)", call,
                                words != nullptr ? words : "no description", name != nullptr ? name : "unnamed");
}

}  // namespace

flagos_status_t Init(const flagos_option_t* options, size_t option_count) {
  try {
    if (g_state.load() != nullptr) return Fail(FLAGOS_ALREADY, "init", -1, "init was called before");
    Options chosen;
    for (size_t i = 0; i < option_count; ++i) {
      if (const flagos_status_t status = ParseOption(options[i], &chosen); status != FLAGOS_OK) return status;
    }
    auto state = std::make_unique<State>();
    state->own_driver = chosen.driver_library.empty();
    // A library that was named is meant to be used, whatever the machine looks like.
    if (chosen.library.empty()) state->absent = WhyAbsent();
    if (!state->absent.empty()) {
      state->count.store(0);
    } else {
      const void* const origin = reinterpret_cast<const void*>(&Init);
      flagos_status_t status = OpenDriver(state.get(), chosen, origin);
      if (status == FLAGOS_OK) status = OpenRuntime(state.get(), chosen, origin);
      if (chosen.audit) {
        std::fprintf(stderr, "flagos %s driver: %s%s", kVendor.platform, state->driver_audit.Text().c_str(),
                     state->runtime_audit.Text().c_str());
      }
      if (status != FLAGOS_OK) return status;
      ResolveErrors(state.get());
      ArmFork();
    }
    g_state.store(state.release(), std::memory_order_release);
    return FLAGOS_OK;
  } catch (const std::exception& error) {
    return Fail(FLAGOS_OUT_OF_MEMORY, "init", -1, "host memory: %s", error.what());
  }
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

flagos_status_t Touch(const char* function) {
  State& state = TheState();
  if (state.touched.load(std::memory_order_acquire)) [[likely]]
    return FLAGOS_OK;
  const std::lock_guard lock(state.touch_mutex);
  if (state.touched.load(std::memory_order_relaxed)) return FLAGOS_OK;
  const Where where{function};
  if (state.absent.empty()) {
    g_touching.store(true);
    if (state.driver.Init != nullptr) {
      const flagos_status_t status = CheckDriver(where, "Init", state.driver.Init(0));
      if (status != FLAGOS_OK && status != FLAGOS_NO_DEVICE) return status;
    }
    if (const flagos_status_t status = AskCount(&state, where); status != FLAGOS_OK) return status;
  }
  state.touched.store(true, std::memory_order_release);
  return FLAGOS_OK;
}

flagos_status_t CheckDevice(const Where& where) {
  if (const flagos_status_t status = Touch(where.function); status != FLAGOS_OK) return status;
  State& state = TheState();
  const int count = state.count.load(std::memory_order_relaxed);
  if (where.device < 0 || where.device >= count) {
    if (!state.absent.empty()) {
      return Fail(FLAGOS_INVALID_DEVICE, where.function, where.device, "%s", state.absent.c_str());
    }
    return Fail(FLAGOS_INVALID_DEVICE, where.function, where.device, "device %d; there are %d", where.device, count);
  }
  const int64_t lost = state.devices[static_cast<size_t>(where.device)].lost.load(std::memory_order_relaxed);
  if (lost == 0) [[likely]]
    return FLAGOS_OK;
  const char* const name = Rt().GetErrorName != nullptr ? Rt().GetErrorName(static_cast<int>(lost)) : nullptr;
  return flagos_sdk::FailVendor(FLAGOS_DEVICE_LOST, where.function, where.device, lost,
                                "the device was lost before (%s); only a new process can use it again",
                                name != nullptr ? name : "unnamed error");
}

flagos_status_t CheckRuntime(const Where& where, const char* call, int code) {
  if (code == 0) [[likely]]
    return FLAGOS_OK;
  if (StatusOf(code) == FLAGOS_NOT_READY) return FLAGOS_NOT_READY;  // no failure
  const RuntimeFunctions& runtime = Rt();
  const std::string full = std::string(kVendor.prefix) + call;
  const char* const name = runtime.GetErrorName != nullptr ? runtime.GetErrorName(code) : nullptr;
  const char* const words = runtime.GetErrorString != nullptr ? runtime.GetErrorString(code) : nullptr;
  const flagos_status_t status = Record(where, full.c_str(), code, name, words);
  runtime.GetLastError();  // else the next innocent caller on this thread would find our failure
  return status;
}

flagos_status_t Missing(const Where& where, const char* call) {
  return Fail(FLAGOS_UNSUPPORTED, where.function, where.device, "the vendor library lacks %s; use a newer one", call);
}

flagos_status_t CheckDriver(const Where& where, const char* call, int code) {
  if (code == 0) [[likely]]
    return FLAGOS_OK;
  const char* name = nullptr;
  const char* words = nullptr;
  if (Drv().ErrorName != nullptr) Drv().ErrorName(code, &name);
  if (Drv().ErrorString != nullptr) Drv().ErrorString(code, &words);
  const NameRow* const row = FindRow(kVendor.driver_names, call);
  return Record(where, row != nullptr ? row->first : call, code, name, words);
}

}  // namespace flagos_cuda_shaped
