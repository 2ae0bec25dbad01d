// SPDX-License-Identifier: Apache-2.0
#include "runtime/driver_library.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>

#include "base/dynlib.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to the program

namespace torch_fl::runtime {
namespace {

namespace fs = std::filesystem;

// clang-format off
#define TORCH_FL_REQUIRED_ENTRIES(X)                                                                                   \
  X(init) X(capabilities) X(device_count) X(device_info) X(device_sync) X(memory_alloc) X(memory_free) X(copy) X(fill) \
  X(stream_create) X(stream_destroy) X(stream_query) X(stream_sync) X(stream_wait)                                     \
  X(event_create) X(event_destroy) X(event_record) X(event_query) X(event_sync) X(last_error)
#define TORCH_FL_OPTIONAL_ENTRIES(X)                                                                                   \
  X(at_exit) X(versions) X(device_memory) X(memory_alignment) X(host_view_offset) X(host_alloc) X(host_free)           \
  X(host_register) X(host_unregister) X(pointer_info) X(access_fault_take) X(stream_priority_range) X(stream_native)   \
  X(stream_wrap) X(stream_host_func) X(event_elapsed) X(peer_can_access) X(peer_enable) X(kernel_begin) X(kernel_end)  \
  X(memory_granularity) X(memory_reserve) X(memory_release) X(memory_map) X(memory_unmap)
// clang-format on

// An entry needs last_error for its text, and the message must not be lost when the driver gives none.
std::string LastErrorText(const flagos_driver_v1_t& driver) {
  const flagos_error_t* error = driver.last_error();
  if (error == nullptr || error->status == FLAGOS_OK) return "the driver gives no reason";
  std::string text = error->vendor_text != nullptr ? error->vendor_text : "";
  if (error->vendor_code != 0) text += " (vendor code " + std::to_string(error->vendor_code) + ")";
  return text;
}

// Variables that start like a driver's options but belong to the loader.
bool IsLoaderVariable(const std::string& variable) {
  return variable == "FLAGOS_DRIVER_PATH" || variable == "FLAGOS_DRIVER_PLUGIN" || variable == "FLAGOS_DRIVER_LAYERS" ||
         variable.rfind("FLAGOS_DRIVER_LIB_", 0) == 0;
}

std::vector<DriverOption> CollectOptions(const std::string& name) {
  std::string prefix = "FLAGOS_" + name + "_";
  for (char& c : prefix) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  std::vector<DriverOption> options;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals + 1 == text.size()) continue;  // empty counts as unset
    const std::string variable = text.substr(0, equals);
    if (variable.rfind(prefix, 0) != 0 || IsLoaderVariable(variable)) continue;
    std::string key = variable.substr(prefix.size());
    for (char& c : key) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    options.push_back({variable, key, text.substr(equals + 1)});
  }
  std::sort(options.begin(), options.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  return options;
}

const flagos_driver_v1_t& FetchTable(const std::string& origin, const DynamicLibrary& library) {
  auto entry = reinterpret_cast<flagos_driver_entry_t>(library.Find(FLAGOS_DRIVER_ENTRY_SYMBOL));
  if (entry == nullptr) {
    throw Error(FLAGOS_SYMBOL_MISSING, origin + ": the library does not export " FLAGOS_DRIVER_ENTRY_SYMBOL
                                                "; it is not a torch_fl driver, or it hides that symbol");
  }
  const flagos_driver_v1_t* table = nullptr;
  const flagos_status_t status = entry(FLAGOS_DRIVER_ABI_VERSION, &table);
  if (status != FLAGOS_OK || table == nullptr) {
    throw Error(status != FLAGOS_OK ? status : FLAGOS_INVALID_VALUE,
                origin + ": " FLAGOS_DRIVER_ENTRY_SYMBOL "(" + std::to_string(FLAGOS_DRIVER_ABI_VERSION) + ") " +
                    (status != FLAGOS_OK ? "returned " + StatusName(status) : "handed out no table") +
                    "; use a driver built for this torch_fl");
  }
  return *table;
}

void CheckTable(const std::string& origin, const flagos_driver_v1_t& table) {
  constexpr const char* kRebuild = "; rebuild the driver against the driver.h of this torch_fl";
  if (table.abi_version != FLAGOS_DRIVER_ABI_VERSION) {
    throw Error(FLAGOS_UNSUPPORTED, origin + ": the driver has abi_version " + std::to_string(table.abi_version) +
                                        ", torch_fl needs " + std::to_string(FLAGOS_DRIVER_ABI_VERSION) + kRebuild);
  }
  if (table.struct_size < FLAGOS_DRIVER_V1_MIN_SIZE) {
    throw Error(FLAGOS_INVALID_VALUE, origin + ": the driver table is truncated: struct_size is " +
                                          std::to_string(table.struct_size) + " bytes, at least " +
                                          std::to_string(FLAGOS_DRIVER_V1_MIN_SIZE) + " are needed" + kRebuild);
  }
}

void CheckEntries(const std::string& origin, LoadedDriver* driver) {
  const flagos_driver_v1_t& table = driver->table;
  std::string missing;
#define TORCH_FL_CHECK(entry) \
  if (table.entry == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(#entry);
  TORCH_FL_REQUIRED_ENTRIES(TORCH_FL_CHECK)
  TORCH_FL_CHECK(platform)
  TORCH_FL_CHECK(implementation)
#undef TORCH_FL_CHECK
  if (!missing.empty()) {
    throw Error(FLAGOS_INVALID_VALUE,
                origin + ": the driver table lacks required entries: " + missing + "; fill them in");
  }
#define TORCH_FL_AUDIT(entry) \
  if (table.entry == nullptr) driver->info.missing_entries.emplace_back(#entry);
  TORCH_FL_OPTIONAL_ENTRIES(TORCH_FL_AUDIT)
#undef TORCH_FL_AUDIT
}

// Entries that a capability makes required.
void CheckCapabilities(const std::string& origin, const LoadedDriver& driver) {
  const auto demand = [&](uint64_t bit, const char* capability, bool present, const char* entry) {
    if ((driver.info.capabilities & bit) == 0 || present) return;
    throw Error(FLAGOS_INVALID_VALUE, origin + ": the driver claims " + capability + " but its table lacks " + entry +
                                          "; fill it in or drop the bit");
  };
  demand(FLAGOS_CAP_HOST_VIEW, "FLAGOS_CAP_HOST_VIEW", driver.table.host_view_offset != nullptr, "host_view_offset");
  const bool kernels = driver.table.kernel_begin != nullptr && driver.table.kernel_end != nullptr;
  demand(FLAGOS_CAP_KERNEL_ORDER, "FLAGOS_CAP_KERNEL_ORDER", kernels, "kernel_begin or kernel_end");
  demand(FLAGOS_CAP_ACCESS_FAULTS, "FLAGOS_CAP_ACCESS_FAULTS", driver.table.access_fault_take != nullptr,
         "access_fault_take");
}

std::unique_ptr<LoadedDriver> LoadNow(const std::string& origin, const std::string& name, const std::string& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) {
    throw Error(FLAGOS_LIBRARY_MISSING, origin + ": no such file: " + path + "; give the path of a driver library");
  }
  DynamicLibrary library;
  try {
    library = DynamicLibrary(path);
  } catch (const Error& error) {
    throw Error(error.status(), origin + ": " + error.what());
  }
  const flagos_driver_v1_t& table = FetchTable(origin, library);
  CheckTable(origin, table);

  auto driver = std::make_unique<LoadedDriver>();
  std::memcpy(&driver->table, &table, std::min<size_t>(table.struct_size, sizeof driver->table));
  driver->table.struct_size = sizeof driver->table;
  CheckEntries(origin, driver.get());
  driver->info.name = name.empty() ? driver->table.platform : name;
  driver->info.path = path;
  driver->info.platform = driver->table.platform;
  driver->info.implementation = driver->table.implementation;

  driver->options = CollectOptions(driver->info.name);
  std::vector<flagos_option_t> options;
  std::string given;
  for (const DriverOption& option : driver->options) {
    options.push_back({option.key.c_str(), option.value.c_str()});
    given += (given.empty() ? " [" : ", ") + option.variable + "=" + option.value;
  }
  if (!given.empty()) given += "]";
  library.Release();  // from here on the driver may have threads and handlers
  const flagos_status_t status = driver->table.init(options.data(), options.size());
  if (status != FLAGOS_OK) {
    throw Error(status,
                origin + ": init failed with " + StatusName(status) + ": " + LastErrorText(driver->table) + given);
  }
  driver->info.capabilities = driver->table.capabilities();
  CheckCapabilities(origin, *driver);
  return driver;
}

struct Outcome {
  std::unique_ptr<LoadedDriver> driver;
  std::exception_ptr error;
};

}  // namespace

const LoadedDriver& LoadDriver(const std::string& origin, const std::string& name, const std::string& path) {
  static auto* const outcomes = new std::map<std::string, Outcome>;
  std::error_code error;
  const fs::path canonical = fs::canonical(path, error);
  const std::string key = error ? path : canonical.string();
  auto found = outcomes->find(key);
  if (found == outcomes->end()) {
    Outcome outcome;
    try {
      outcome.driver = LoadNow(origin, name, path);
    } catch (...) {
      outcome.error = std::current_exception();
    }
    found = outcomes->emplace(key, std::move(outcome)).first;
  }
  if (found->second.error) std::rethrow_exception(found->second.error);
  return *found->second.driver;
}

std::string DriverNameOfFile(const std::string& file) {
  constexpr std::string_view kPrefix = "libtorch_fl_driver_";
  constexpr std::string_view kSuffix = ".so";
  if (file.size() <= kPrefix.size() + kSuffix.size() || file.rfind(kPrefix, 0) != 0 ||
      file.compare(file.size() - kSuffix.size(), kSuffix.size(), kSuffix) != 0) {
    return {};
  }
  return file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size());
}

void ThrowDriverError(const flagos_driver_v1_t& driver, flagos_status_t status, const char* entry, int device) {
  std::string where = entry;
  if (device >= 0) where += " on device " + std::to_string(device);
  throw Error(status, "flagos: " + where + " failed with " + StatusName(status) + ": " + LastErrorText(driver));
}

}  // namespace torch_fl::runtime
