// SPDX-License-Identifier: Apache-2.0
#include "torch/device/pinned.h"

#include <c10/core/CPUAllocator.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "runtime/runtime.h"
#include "torch/device/errors.h"

namespace torch_fl {
namespace {

// Live blocks, for drivers that cannot classify a pointer. Leaked: storages may die after static destruction.
struct Blocks {
  std::mutex mutex;
  std::map<const char*, size_t, std::less<>> sizes;

  void Add(void* base, size_t size) {
    std::lock_guard lock(mutex);
    sizes[static_cast<const char*>(base)] = size;
  }
  void Remove(void* base) {
    std::lock_guard lock(mutex);
    sizes.erase(static_cast<const char*>(base));
  }
  bool Contains(const void* pointer) {
    const auto* address = static_cast<const char*>(pointer);
    std::lock_guard lock(mutex);
    auto next = sizes.upper_bound(address);
    if (next == sizes.begin()) return false;
    --next;
    return address < next->first + next->second;
  }
};

Blocks& LiveBlocks() {
  static auto* blocks = new Blocks;
  return *blocks;
}

void FreePinned(void* pointer) {
  if (pointer == nullptr) return;
  // The parent owns what a forked child inherited, its lock included.
  if ((runtime::g_attention.load(std::memory_order_relaxed) & runtime::kAttentionForked) != 0) return;
  LiveBlocks().Remove(pointer);
  auto* const free = runtime::Driver().host_free;
  if (free != nullptr) (void)free(pointer);  // a deleter has nobody to tell
}

class FlagosPinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    return Translate([&] {
      runtime::CheckAttention("pin_memory");
      const flagos_driver_v1_t& driver = runtime::Driver();
      void* pointer = nullptr;
      const flagos_status_t status = driver.host_alloc(size, &pointer);
      if (status != FLAGOS_OK) {
        throw Error(status, "host_alloc of " + std::to_string(size) + " bytes of page-locked memory failed: " +
                                StatusName(status) + ": " + driver.last_error()->vendor_text);
      }
      if (pointer != nullptr) LiveBlocks().Add(pointer, size);
      return c10::DataPtr(pointer, pointer, &FreePinned, c10::Device(c10::DeviceType::CPU));
    });
  }
  c10::DeleterFnPtr raw_deleter() const override { return &FreePinned; }
  void copy_data(void* dest, const void* src, std::size_t count) const override { default_copy_data(dest, src, count); }
};

}  // namespace

c10::Allocator* PinnedAllocator() {
  const flagos_driver_v1_t& driver = runtime::Driver();
  if (driver.host_alloc == nullptr || driver.host_free == nullptr) return c10::GetCPUAllocator();
  static auto* allocator = new FlagosPinnedAllocator;
  return allocator;
}

bool IsPinned(const void* pointer) noexcept {
  return Swallow(
      [&] {
        if (pointer == nullptr || runtime::DeviceCount() == 0) return false;
        auto* const query = runtime::Driver().pointer_info;
        if (query == nullptr) return LiveBlocks().Contains(pointer);
        flagos_pointer_info_t info{};
        info.struct_size = sizeof(info);
        return query(pointer, &info) == FLAGOS_OK && info.space == FLAGOS_SPACE_PINNED;
      },
      false);
}

}  // namespace torch_fl
