// SPDX-License-Identifier: Apache-2.0
// Addresses apart from memory, through the driver library. The vendor checks little here, and a kernel or copy that meets a
// hole ends the context, so what is reserved and mapped is kept in a table of ours.
#include <map>
#include <vector>

#include "cuda_shaped/shared.h"

namespace flagos_cuda_shaped {
namespace {

// As the driver library reads them; zero in all fields beyond.
struct Location {
  int32_t type = 1;  // a device
  int32_t device = 0;
};
struct Properties {
  int32_t type = 1;  // pinned: the only kind there is
  int32_t handle_types = 0;
  Location location;
  void* security = nullptr;
  uint8_t flags[8] = {};
  uint8_t beyond[96] = {};
};
struct Access {
  Location location;
  int32_t flags = 3;  // read and write
};
static_assert(sizeof(Location) == 8 && sizeof(Access) == 12 && offsetof(Properties, flags) == 24);

struct Reservation {
  int device;
  size_t size;
  std::map<uintptr_t, size_t> mappings;  // start -> bytes
};

struct Table {
  std::mutex mutex;
  std::map<uintptr_t, Reservation> reservations;
};

// Leaked like the rest of the state.
Table& TheTable() {
  static auto* const table = new Table;
  return *table;
}

// So that copies in a process without reservations pay one load.
std::atomic<size_t> g_reservations{0};

uintptr_t AddressOf(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// With the mutex held. The reservation that holds the address, or NULL.
Reservation* Holding(uintptr_t address, uintptr_t* start) {
  auto& reservations = TheTable().reservations;
  auto next = reservations.upper_bound(address);
  if (next == reservations.begin()) return nullptr;
  --next;
  if (address - next->first >= next->second.size) return nullptr;
  *start = next->first;
  return &next->second;
}

flagos_status_t Granularity(const Where& where, size_t* out) {
  Properties properties;
  properties.location.device = where.device;
  return CUDA_SHAPED_DRV(where, AddressGranularity, out, &properties, 0);
}

flagos_status_t CheckMultiple(const Where& where, uintptr_t address, size_t size) {
  size_t granule = 0;
  if (const flagos_status_t status = Granularity(where, &granule); status != FLAGOS_OK) return status;
  if (granule != 0 && address % granule == 0 && size % granule == 0) return FLAGOS_OK;
  return Fail(FLAGOS_INVALID_VALUE, where.function, where.device,
              "%zu bytes at %#zx are no multiples of the granularity, %zu bytes", size, static_cast<size_t>(address),
              granule);
}

flagos_status_t OpenRange(const Where& where, int owner, uintptr_t address, size_t size) {
  std::vector<Access> accesses(1);
  accesses[0].location.device = owner;
  for (int peer = 0; peer < kMaxDevices; ++peer) {
    if ((PeersOf(owner) >> peer & 1) == 0) continue;
    accesses.emplace_back();
    accesses.back().location.device = peer;
  }
  return CUDA_SHAPED_DRV(where, AddressAccess, address, size, accesses.data(), accesses.size());
}

flagos_status_t MapFresh(const Where& where, uintptr_t address, size_t size) {
  Properties properties;
  properties.location.device = where.device;
  VendorHandle memory = 0;
  flagos_status_t status = CUDA_SHAPED_DRV(where, PhysicalCreate, &memory, size, &properties, 0ull);
  if (status != FLAGOS_OK) return status;
  status = CUDA_SHAPED_DRV(where, AddressMap, address, size, size_t{0}, memory, 0ull);
  if (status == FLAGOS_OK) {
    status = OpenRange(where, where.device, address, size);
    if (status != FLAGOS_OK) Drv().AddressUnmap(address, size);
  }
  Drv().PhysicalRelease(memory);  // the mapping keeps it from here on
  return status;
}

}  // namespace

Reserved FindReserved(const void* pointer, size_t size) {
  if (g_reservations.load(std::memory_order_acquire) == 0) [[likely]]
    return {};
  const std::lock_guard lock(TheTable().mutex);
  uintptr_t start = 0;
  uintptr_t address = AddressOf(pointer);
  const Reservation* const reservation = Holding(address, &start);
  if (reservation == nullptr) return {};
  Reserved found{true, false, reservation->device};
  if (size > start + reservation->size - address) return found;
  const uintptr_t end = address + size;
  auto mapping = reservation->mappings.upper_bound(address);
  if (mapping == reservation->mappings.begin()) return found;
  for (--mapping; mapping != reservation->mappings.end() && mapping->first <= address; ++mapping) {
    address = mapping->first + mapping->second;
    if (address >= end) break;
  }
  found.mapped = address >= end;
  return found;
}

flagos_status_t MemoryGranularity(int32_t device, size_t* out_bytes) {
  return Guarded("memory_granularity", [&] {
    const Where where{"memory_granularity", device};
    const flagos_status_t status = CheckDevice(where);
    return status == FLAGOS_OK ? Granularity(where, out_bytes) : status;
  });
}

// Addresses need no context.
flagos_status_t MemoryReserve(int32_t device, size_t size, void** out_pointer) {
  return Guarded("memory_reserve", [&]() -> flagos_status_t {
    const Where where{"memory_reserve", device};
    if (const flagos_status_t status = CheckDevice(where); status != FLAGOS_OK) return status;
    if (size == 0) {
      *out_pointer = nullptr;
      return FLAGOS_OK;
    }
    if (const flagos_status_t status = CheckMultiple(where, 0, size); status != FLAGOS_OK) return status;
    if (size > kMaxBytes) {
      return Fail(FLAGOS_OUT_OF_MEMORY, where.function, device, "%zu bytes are more than there are addresses", size);
    }
    const std::lock_guard lock(TheTable().mutex);
    VendorAddress address = 0;
    const flagos_status_t status =
        CUDA_SHAPED_DRV(where, AddressReserve, &address, size, size_t{0}, VendorAddress{0}, 0ull);
    if (status != FLAGOS_OK) return status;
    try {
      TheTable().reservations.emplace(address, Reservation{device, size, {}});
    } catch (...) {
      Drv().AddressFree(address, size);
      throw;
    }
    g_reservations.fetch_add(1, std::memory_order_release);
    *out_pointer = reinterpret_cast<void*>(address);
    return FLAGOS_OK;
  });
}

flagos_status_t MemoryRelease(int32_t device, void* pointer, size_t size) {
  if (g_forked.load(std::memory_order_relaxed)) return FLAGOS_OK;
  return Guarded("memory_release", [&]() -> flagos_status_t {
    const Where where{"memory_release", device};
    if (const flagos_status_t status = CheckDevice(where); status != FLAGOS_OK) return status;
    if (size == 0) return FLAGOS_OK;
    const std::lock_guard lock(TheTable().mutex);
    const auto found = TheTable().reservations.find(AddressOf(pointer));
    if (found == TheTable().reservations.end() || found->second.size != size || found->second.device != device) {
      return Fail(FLAGOS_INVALID_VALUE, where.function, device, "%zu bytes at %p are not a reservation of device %d",
                  size, pointer, device);
    }
    if (!found->second.mappings.empty()) {
      return Fail(FLAGOS_INVALID_VALUE, where.function, device, "memory is still mapped at %p", pointer);
    }
    const flagos_status_t status = CUDA_SHAPED_DRV(where, AddressFree, AddressOf(pointer), size);
    if (status != FLAGOS_OK) return status;
    TheTable().reservations.erase(found);
    g_reservations.fetch_sub(1, std::memory_order_release);
    return FLAGOS_OK;
  });
}

flagos_status_t MemoryMap(int32_t device, void* pointer, size_t size) {
  return OnDevice("memory_map", device, [&](const Where& where) -> flagos_status_t {
    if (size == 0) return FLAGOS_OK;
    const uintptr_t address = AddressOf(pointer);
    if (const flagos_status_t status = CheckMultiple(where, address, size); status != FLAGOS_OK) return status;
    const std::lock_guard lock(TheTable().mutex);
    uintptr_t start = 0;
    Reservation* const reservation = Holding(address, &start);
    if (reservation == nullptr || reservation->device != device || size > start + reservation->size - address) {
      return Fail(FLAGOS_INVALID_VALUE, where.function, device,
                  "%zu bytes at %p are not inside a reservation of device %d", size, pointer, device);
    }
    auto& mappings = reservation->mappings;
    const auto next = mappings.lower_bound(address);
    const bool after = next != mappings.end() && next->first < address + size;
    const bool before = next != mappings.begin() && std::prev(next)->first + std::prev(next)->second > address;
    if (after || before) return Fail(FLAGOS_ALREADY, where.function, device, "memory is mapped at %p already", pointer);
    const auto entry = mappings.emplace(address, size).first;
    const flagos_status_t status = MapFresh(where, address, size);
    if (status != FLAGOS_OK) mappings.erase(entry);
    return status;
  });
}

flagos_status_t MemoryUnmap(int32_t device, void* pointer, size_t size) {
  if (g_forked.load(std::memory_order_relaxed)) return FLAGOS_OK;
  return OnDevice("memory_unmap", device, [&](const Where& where) -> flagos_status_t {
    if (size == 0) return FLAGOS_OK;
    const uintptr_t address = AddressOf(pointer);
    // Not with the lock: a host function that this waits for may belong to a thread that wants it. Peers may be reading.
    if (const flagos_status_t status = SyncUsedDevices(where.function); status != FLAGOS_OK) return status;
    const std::lock_guard lock(TheTable().mutex);
    uintptr_t start = 0;
    Reservation* const reservation = Holding(address, &start);
    const auto unknown = [&] {
      return Fail(FLAGOS_INVALID_VALUE, where.function, device, "%zu bytes at %p are not whole mappings of device %d",
                  size, pointer, device);
    };
    if (reservation == nullptr || reservation->device != device || size > kMaxBytes) return unknown();
    auto& mappings = reservation->mappings;
    uintptr_t end = address;
    const auto first = mappings.find(address);
    auto last = first;
    while (last != mappings.end() && last->first == end && end < address + size) {
      end += last->second;
      ++last;
    }
    if (first == mappings.end() || end != address + size) return unknown();
    for (auto mapping = first; mapping != last;) {
      const flagos_status_t status = CUDA_SHAPED_DRV(where, AddressUnmap, mapping->first, mapping->second);
      if (status != FLAGOS_OK) return status;
      mapping = mappings.erase(mapping);
    }
    return FLAGOS_OK;
  });
}

flagos_status_t OpenMappings(const Where& where, int owner) {
  if (g_reservations.load(std::memory_order_acquire) == 0) return FLAGOS_OK;
  const std::lock_guard lock(TheTable().mutex);
  for (const auto& [start, reservation] : TheTable().reservations) {
    if (reservation.device != owner) continue;
    for (const auto& [address, size] : reservation.mappings) {
      if (const flagos_status_t status = OpenRange(where, owner, address, size); status != FLAGOS_OK) return status;
    }
  }
  return FLAGOS_OK;
}

}  // namespace flagos_cuda_shaped
