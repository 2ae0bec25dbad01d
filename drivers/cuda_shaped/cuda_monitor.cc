// SPDX-License-Identifier: Apache-2.0
#include "cuda_shaped/cuda_monitor.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>

#include "sdk/symbols.h"

namespace flagos_cuda_shaped {
namespace {

struct MonitorMemory {
  uint64_t total;
  uint64_t free;
  uint64_t used;
};

// One session with the library: it keeps file descriptors only while it is open.
class Monitor {
 public:
  Monitor() {
    flagos_sdk::Audit audit;
    void* const library = flagos_sdk::OpenLibrary({"libnvidia-ml.so.1"}, nullptr, &audit);
    void** const slots[] = {reinterpret_cast<void**>(&init_),       reinterpret_cast<void**>(&shutdown_),
                            reinterpret_cast<void**>(&count_),      reinterpret_cast<void**>(&by_index_),
                            reinterpret_cast<void**>(&by_address_), reinterpret_cast<void**>(&memory_),
                            reinterpret_cast<void**>(&mig_mode_)};
    flagos_sdk::ResolveSymbols(library,
                               {{"init", true, slots[0], {"nvmlInit_v2"}},
                                {"shutdown", true, slots[1], {"nvmlShutdown"}},
                                {"count", true, slots[2], {"nvmlDeviceGetCount_v2"}},
                                {"by_index", true, slots[3], {"nvmlDeviceGetHandleByIndex_v2"}},
                                {"by_address", true, slots[4], {"nvmlDeviceGetHandleByPciBusId_v2"}},
                                {"memory", true, slots[5], {"nvmlDeviceGetMemoryInfo"}},
                                {"mig_mode", true, slots[6], {"nvmlDeviceGetMigMode"}}},
                               &audit);
    open_ = audit.MissingRequired().empty() && init_ != nullptr && init_() == 0;
  }
  ~Monitor() {
    if (open_) shutdown_();
  }
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // -1 when unknown, and with a partitioned device: what a process sees of those is CUDA's own business.
  int Count() const {
    unsigned count = 0;
    if (!open_ || count_(&count) != 0) return -1;
    for (unsigned i = 0; i < count; ++i) {
      void* device = nullptr;
      unsigned current = 0;
      unsigned pending = 0;
      if (by_index_(i, &device) != 0) return -1;
      if (mig_mode_(device, &current, &pending) == 0 && current != 0) return -1;
    }
    return static_cast<int>(count);
  }

  bool Memory(const char* pci, MonitorMemory* out) const {
    void* device = nullptr;
    return open_ && by_address_(pci, &device) == 0 && memory_(device, out) == 0;
  }

 private:
  bool open_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*by_index_)(unsigned, void**) = nullptr;
  int (*by_address_)(const char*, void**) = nullptr;
  int (*memory_)(void*, MonitorMemory*) = nullptr;
  int (*mig_mode_)(void*, unsigned*, unsigned*) = nullptr;
};

}  // namespace

int CountVisible(const char* list, int total) {
  std::set<int> seen;
  std::string_view rest = list;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    std::string_view word = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
    while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
    int number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size()) return -1;
    if (number < 0 || number >= total) break;
    if (!seen.insert(number).second) return -1;
  }
  return static_cast<int>(seen.size());
}

int CountQuietly() {
  const int total = Monitor().Count();
  const char* const list = std::getenv("CUDA_VISIBLE_DEVICES");
  return total < 0 || list == nullptr ? total : CountVisible(list, total);
}

bool MemoryQuietly(const char* pci, uint64_t* free_bytes, uint64_t* total_bytes) {
  MonitorMemory memory{};
  if (!Monitor().Memory(pci, &memory)) return false;
  *free_bytes = memory.free;
  *total_bytes = memory.total;
  return true;
}

}  // namespace flagos_cuda_shaped
