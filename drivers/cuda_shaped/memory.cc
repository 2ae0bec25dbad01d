// SPDX-License-Identifier: Apache-2.0
// Device blocks, page-locked host memory, and who owns an address.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "cuda_shaped/shared.h"

namespace flagos_cuda_shaped {
namespace {

// What PointerGetAttributes writes, in all members of the family and all their versions. Some write up to 88 bytes.
struct PointerAttributes {
  int32_t type;
  int32_t device;
  void* device_pointer;
  void* host_pointer;
  char beyond[232];
};

// The process ends and the vendor's library is gone already, and the memory with it.
flagos_status_t FreeStatus(flagos_status_t status) { return status == FLAGOS_NOT_INITIALIZED ? FLAGOS_OK : status; }

// Blocks that this driver made and has not given back. Two threads that free one pointer at the same time crash the vendor's
// library (seen on an H200), so only one of them may get there.
class Blocks {
 public:
  void Add(void* pointer, int device) {
    const std::lock_guard lock(mutex_);
    owner_.emplace(pointer, device);
  }
  // True for one caller.
  bool Take(void* pointer, int device) {
    const std::lock_guard lock(mutex_);
    const auto found = owner_.find(pointer);
    if (found == owner_.end() || found->second != device) return false;
    owner_.erase(found);
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, int> owner_;
};

// Leaked: blocks are freed until the process is gone.
Blocks& DeviceBlocks() {
  static auto* const blocks = new Blocks;
  return *blocks;
}
Blocks& HostBlocks() {
  static auto* const blocks = new Blocks;
  return *blocks;
}

bool Gone() { return g_forked.load(std::memory_order_relaxed); }

void FindRange(const Where& where, const void* pointer, flagos_pointer_info_t* info) {
  const RangeAttributes& numbers = kVendor.range_attributes;
  if (Drv().PointerAttribute == nullptr || numbers.start < 0 || numbers.size < 0) return;
  const auto address = reinterpret_cast<VendorAddress>(pointer);
  VendorAddress base = 0;
  size_t size = 0;
  if (CUDA_SHAPED_DRV(where, PointerAttribute, &base, numbers.start, address) != FLAGOS_OK) return;
  if (CUDA_SHAPED_DRV(where, PointerAttribute, &size, numbers.size, address) != FLAGOS_OK) return;
  info->base = reinterpret_cast<void*>(base);
  info->size = size;
}

}  // namespace

flagos_status_t Locate(const Where& where, const void* pointer, Place* out) {
  *out = Place{};
  if (pointer == nullptr) return FLAGOS_OK;
  if (const Reserved reserved = FindReserved(pointer, 1); reserved.inside) {
    if (reserved.mapped) *out = {FLAGOS_SPACE_DEVICE, reserved.device, false};
    return FLAGOS_OK;
  }
  PointerAttributes attributes;
  std::memset(&attributes, 0, sizeof attributes);
  const int code = Rt().PointerGetAttributes(&attributes, pointer);
  if (code != 0) {
    // Some members call an address of the host an invalid value.
    const flagos_status_t status = CheckRuntime(where, "PointerGetAttributes", code);
    return status == FLAGOS_INVALID_VALUE ? FLAGOS_OK : status;
  }
  const PointerTypes& types = kVendor.pointer_types;
  if (attributes.type == types.device || attributes.type == types.managed) {
    *out = {FLAGOS_SPACE_DEVICE, attributes.device, attributes.type == types.managed};
  } else if (attributes.type == types.host) {
    out->space = FLAGOS_SPACE_PINNED;
  }
  return FLAGOS_OK;
}

flagos_status_t MemoryAlloc(int32_t device, size_t size, void** out_pointer) {
  if (size == 0) {
    return Guarded("memory_alloc", [&] {
      if (const flagos_status_t status = CheckDevice({"memory_alloc", device}); status != FLAGOS_OK) return status;
      *out_pointer = nullptr;
      return FLAGOS_OK;
    });
  }
  return OnDevice("memory_alloc", device, [&](const Where& where) {
    if (size > kMaxBytes) {
      return Fail(FLAGOS_OUT_OF_MEMORY, where.function, device, "%zu bytes are more than any device has", size);
    }
    void* pointer = nullptr;
    const flagos_status_t status = CUDA_SHAPED_RT(where, Malloc, &pointer, size);
    if (status != FLAGOS_OK) return status;
    DeviceBlocks().Add(pointer, device);
    *out_pointer = pointer;
    return FLAGOS_OK;
  });
}

// The vendor's Free waits for the device.
flagos_status_t MemoryFree(int32_t device, void* pointer) {
  if (pointer == nullptr || Gone()) return FLAGOS_OK;
  return FreeStatus(OnDevice("memory_free", device, [&](const Where& where) {
    if (!DeviceBlocks().Take(pointer, device)) {
      return Fail(FLAGOS_INVALID_VALUE, where.function, device, "%p is not a block of device %d", pointer, device);
    }
    const flagos_status_t status = CUDA_SHAPED_RT(where, Free, pointer);
    if (status != FLAGOS_OK) DeviceBlocks().Add(pointer, device);
    return status;
  }));
}

flagos_status_t HostAlloc(size_t size, void** out_pointer) {
  if (size == 0) {
    *out_pointer = nullptr;
    return FLAGOS_OK;
  }
  return OnDevice("host_alloc", AnyDevice(), [&](const Where& device) {
    const Where where{device.function};
    if (size > kMaxBytes) {
      return Fail(FLAGOS_OUT_OF_MEMORY, where.function, -1, "%zu bytes are more than any host has", size);
    }
    void* pointer = nullptr;
    const flagos_status_t status = CUDA_SHAPED_RT(where, HostAlloc, &pointer, size, kHostAllocPortable);
    if (status != FLAGOS_OK) return status;
    HostBlocks().Add(pointer, FLAGOS_HOST);
    *out_pointer = pointer;
    return FLAGOS_OK;
  });
}

flagos_status_t HostFree(void* pointer) {
  if (pointer == nullptr || Gone()) return FLAGOS_OK;
  return FreeStatus(OnDevice("host_free", AnyDevice(), [&](const Where& device) {
    const Where where{device.function};
    if (!HostBlocks().Take(pointer, FLAGOS_HOST)) {
      return Fail(FLAGOS_INVALID_VALUE, where.function, -1, "%p was not made by host_alloc", pointer);
    }
    // Copies read it when their stream gets there.
    flagos_status_t status = SyncUsedDevices(where.function);
    if (status == FLAGOS_OK) status = CUDA_SHAPED_RT(where, FreeHost, pointer);
    if (status != FLAGOS_OK) HostBlocks().Add(pointer, FLAGOS_HOST);
    return status;
  }));
}

flagos_status_t HostRegister(void* pointer, size_t size) {
  if (size == 0) return FLAGOS_OK;
  return OnDevice("host_register", AnyDevice(), [&](const Where& device) {
    const Where where{device.function};
    Place place;
    if (const flagos_status_t status = Locate(where, pointer, &place); status != FLAGOS_OK) return status;
    if (pointer == nullptr || place.space == FLAGOS_SPACE_DEVICE) {
      return Fail(FLAGOS_INVALID_VALUE, where.function, -1, "%p is not host memory", pointer);
    }
    if (place.space == FLAGOS_SPACE_PINNED) {
      return Fail(FLAGOS_ALREADY, where.function, -1, "%p is page-locked already", pointer);
    }
    return CUDA_SHAPED_RT(where, HostRegister, pointer, size, kHostAllocPortable);
  });
}

flagos_status_t HostUnregister(void* pointer) {
  if (Gone()) return FLAGOS_OK;
  return FreeStatus(OnDevice("host_unregister", AnyDevice(), [&](const Where& device) {
    const Where where{device.function};
    if (const flagos_status_t status = SyncUsedDevices(where.function); status != FLAGOS_OK) return status;
    return CUDA_SHAPED_RT(where, HostUnregister, pointer);
  }));
}

flagos_status_t PointerInfo(const void* pointer, flagos_pointer_info_t* info) {
  const auto answer = [&](const flagos_pointer_info_t& full) {
    std::memcpy(info, &full, std::min<size_t>(info->struct_size, sizeof full));
    return FLAGOS_OK;
  };
  flagos_pointer_info_t full{};
  full.struct_size = info->struct_size;
  full.device = -1;
  return Guarded("pointer_info", [&]() -> flagos_status_t {
    // Asking the vendor would make a context. What other libraries made before our first one stays unknown.
    if (pointer == nullptr || TheState().first_used.load(std::memory_order_acquire) < 0) return answer(full);
    return OnDevice("pointer_info", AnyDevice(), [&](const Where& device) {
      const Where where{device.function};
      Place place;
      if (const flagos_status_t status = Locate(where, pointer, &place); status != FLAGOS_OK) return status;
      full.space = place.space;
      full.device = place.device;
      if (place.space != FLAGOS_SPACE_UNKNOWN) FindRange(where, pointer, &full);
      return answer(full);
    });
  });
}

}  // namespace flagos_cuda_shaped
