// SPDX-License-Identifier: Apache-2.0
// Which driver is active.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>

#include "base/dynlib.h"
#include "base/options.h"
#include "runtime/driver_library.h"
#include "runtime/layers.h"

namespace torch_fl::runtime {
namespace {

namespace fs = std::filesystem;

// Guards the choice and every LoadDriver call. Leaked, like everything process-wide here: tensors may outlive static
// destructors.
std::mutex& LoaderMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

std::atomic<const LoadedDriver*> g_active{nullptr};
std::exception_ptr* g_failure = nullptr;  // guarded by LoaderMutex

bool IsHardware(const std::string& name) { return name != "host" && name != "null"; }

std::string PathOf(const std::string& name) { return DriverFolder() + "/libtorch_fl_driver_" + name + ".so"; }

std::string Join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "none" : text;
}

// The first hardware driver of the folder that loads and reports a device. A library that cannot serve this machine is
// no error here: that is the usual case.
const LoadedDriver* ProbeHardware() {
  for (const std::string& name : AvailableDrivers()) {
    if (!IsHardware(name)) continue;
    try {
      const LoadedDriver& driver = LoadDriver("driver " + name, name, PathOf(name));
      int32_t count = 0;
      if (driver.table.device_count(&count) == FLAGOS_OK && count > 0) return &driver;
    } catch (const Error&) {
      continue;
    }
  }
  return nullptr;
}

const LoadedDriver& Choose() {
  if (const auto plugin = EnvString("FLAGOS_DRIVER_PLUGIN")) {
    return LoadDriver("FLAGOS_DRIVER_PLUGIN=" + *plugin, DriverNameOfFile(fs::path(*plugin).filename().string()),
                      *plugin);
  }
  const auto wanted = EnvString("FLAGOS_DRIVER");
  if (!wanted) {
    if (const LoadedDriver* hardware = ProbeHardware()) return *hardware;
  }
  const std::string name = wanted.value_or("host");
  const std::string origin = wanted ? "FLAGOS_DRIVER=" + name : "default driver " + name;
  const std::vector<std::string> available = AvailableDrivers();
  if (std::find(available.begin(), available.end(), name) == available.end()) {
    throw Error(FLAGOS_LIBRARY_MISSING,
                origin + ": no such driver; available: " + Join(available) + " (in " + DriverFolder() + ")");
  }
  return LoadDriver(origin, name, PathOf(name));
}

// The driver in its layers. What they add (kernel order) shows in the capabilities; which entries the driver itself
// lacks stays as it is.
const LoadedDriver& InLayers(const LoadedDriver& driver, const std::vector<LayerSpec>& layers) {
  if (layers.empty()) return driver;
  auto wrapped = std::make_unique<LoadedDriver>(driver);
  wrapped->table = WrapDriver(driver.table, layers);
  wrapped->info.capabilities = wrapped->table.capabilities();
  for (const LayerSpec& layer : layers) wrapped->info.layers.push_back(layer.name);
  return *wrapped.release();  // lives for ever, as every loaded driver does
}

const LoadedDriver& Active() {
  if (const LoadedDriver* active = g_active.load(std::memory_order_acquire)) [[likely]]
    return *active;
  const std::lock_guard lock(LoaderMutex());
  if (const LoadedDriver* active = g_active.load(std::memory_order_relaxed)) return *active;
  if (g_failure != nullptr) std::rethrow_exception(*g_failure);
  try {
    const std::vector<LayerSpec> layers = ParseLayers(EnvString("FLAGOS_DRIVER_LAYERS").value_or(""));
    const LoadedDriver& chosen = InLayers(Choose(), layers);
    if ((chosen.info.capabilities & FLAGOS_CAP_ACCESS_FAULTS) != 0) g_attention.fetch_or(kAttentionFaults);
    if ((chosen.info.capabilities & FLAGOS_CAP_KERNEL_ORDER) != 0) g_attention.fetch_or(kAttentionKernels);
    g_active.store(&chosen, std::memory_order_release);
    RegisterExit();
    return chosen;
  } catch (...) {
    g_failure = new std::exception_ptr(std::current_exception());
    throw;
  }
}

}  // namespace

const flagos_driver_v1_t& Driver() { return Active().table; }
const DriverInfo& GetDriverInfo() { return Active().info; }
const std::vector<DriverOption>& DriverOptions() { return Active().options; }

std::string DriverFolder() {
  if (const auto folder = EnvString("FLAGOS_DRIVER_PATH")) return *folder;
  const fs::path library = LibraryPathOf(reinterpret_cast<const void*>(&DriverFolder));
  std::error_code error;
  const fs::path absolute = fs::absolute(library, error);
  return ((error ? library : absolute).parent_path() / "drivers").string();
}

std::vector<std::string> AvailableDrivers() {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator file(DriverFolder(), error), end; !error && file != end; file.increment(error)) {
    std::string name = DriverNameOfFile(file->path().filename().string());
    if (!name.empty()) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool HardwareDetected() noexcept {
  constexpr int kUnknown = -1;
  static std::atomic<int> detected{kUnknown};
  if (const int known = detected.load(); known != kUnknown) return known != 0;
  if (Forked()) return false;  // the lock may be held for ever
  try {
    const std::lock_guard lock(LoaderMutex());
    detected.store(ProbeHardware() != nullptr ? 1 : 0);
    return detected.load() != 0;
  } catch (...) {
    return false;
  }
}

}  // namespace torch_fl::runtime
