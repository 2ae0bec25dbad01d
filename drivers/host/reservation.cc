// SPDX-License-Identifier: Apache-2.0
// Address space apart from memory. A reservation is a span of the arena; what is mapped in it counts as used memory.
#include "host/host.h"

namespace flagos_host {
namespace {

constexpr size_t kGranularity = size_t{2} << 20;

flagos_status_t CheckAligned(const char* function, int device, const void* pointer, size_t size) {
  if (reinterpret_cast<uintptr_t>(pointer) % kGranularity == 0 && size % kGranularity == 0) return FLAGOS_OK;
  return Fail(FLAGOS_INVALID_VALUE, function, device, "%p and %zu bytes must be multiples of memory_granularity, %zu",
              pointer, size, kGranularity);
}

// The reservation that holds all of the range, or NULL. With the device's mutex held.
Reservation* FindReservation(Device& state, uintptr_t begin, size_t size) {
  auto next = state.reservations.upper_bound(begin);
  if (next == state.reservations.begin()) return nullptr;
  auto& [base, reservation] = *std::prev(next);
  return Range{base, reservation.size}.Holds(begin, size) ? &reservation : nullptr;
}

flagos_status_t NotReserved(const char* function, int device, const void* pointer, size_t size) {
  return Fail(FLAGOS_INVALID_VALUE, function, device, "%zu bytes at %p are not inside one reservation of device %d",
              size, pointer, device);
}

// FLAGOS_OK when whole mappings, and nothing else, make up the range. With the device's mutex held.
flagos_status_t CheckWholeMappings(int device, void* pointer, size_t size) {
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  Reservation* reservation = FindReservation(DeviceOf(device), begin, size);
  if (reservation == nullptr) return NotReserved("memory_unmap", device, pointer, size);
  uintptr_t reached = begin;
  for (auto it = reservation->mappings.find(begin);
       it != reservation->mappings.end() && it->first == reached && reached < begin + size; ++it) {
    reached += it->second;
  }
  if (reached == begin + size) return FLAGOS_OK;
  return Fail(FLAGOS_INVALID_VALUE, "memory_unmap", device,
              "%zu bytes at %p are not whole mappings: from %p on they are not mapped, or only part of a mapping", size,
              pointer, reinterpret_cast<void*>(reached > begin + size ? begin + size : reached));
}

}  // namespace

flagos_status_t MemoryGranularity(int32_t device, size_t* out_bytes) {
  return Guarded("memory_granularity", [&] {
    if (const flagos_status_t status = CheckDevice("memory_granularity", device); status != FLAGOS_OK) return status;
    *out_bytes = kGranularity;
    return FLAGOS_OK;
  });
}

flagos_status_t MemoryReserve(int32_t device, size_t size, void** out_pointer) {
  return Guarded("memory_reserve", [&] {
    if (const flagos_status_t status = CheckDevice("memory_reserve", device); status != FLAGOS_OK) return status;
    if (const flagos_status_t status = CheckAligned("memory_reserve", device, nullptr, size); status != FLAGOS_OK) {
      return status;
    }
    if (size == 0) {
      *out_pointer = nullptr;
      return FLAGOS_OK;
    }
    Device& state = DeviceOf(device);
    const std::lock_guard lock(state.mutex);
    if (const flagos_status_t status = EnsureArena(device); status != FLAGOS_OK) return status;
    const uintptr_t begin = TakeSpan(state, size, kGranularity);
    if (begin == 0) {
      return Fail(FLAGOS_OUT_OF_MEMORY, "memory_reserve", device,
                  "no address space for %zu bytes; device %d has %zu in all", size, device, state.arena.size);
    }
    state.reservations[begin].size = size;
    *out_pointer = reinterpret_cast<void*>(begin);
    return FLAGOS_OK;
  });
}

flagos_status_t MemoryRelease(int32_t device, void* pointer, size_t size) {
  return Guarded("memory_release", [&] {
    if (const flagos_status_t status = CheckDevice("memory_release", device); status != FLAGOS_OK) return status;
    if (size == 0) return FLAGOS_OK;
    Device& state = DeviceOf(device);
    const std::lock_guard lock(state.mutex);
    const auto found = state.reservations.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == state.reservations.end() || found->second.size != size) {
      return Fail(FLAGOS_INVALID_VALUE, "memory_release", device, "%zu bytes at %p are not a reservation of device %d",
                  size, pointer, device);
    }
    if (const auto& mappings = found->second.mappings; !mappings.empty()) {
      return Fail(FLAGOS_INVALID_VALUE, "memory_release", device,
                  "%zu mappings are left in the reservation at %p, the first at %p; unmap them first", mappings.size(),
                  pointer, reinterpret_cast<void*>(mappings.begin()->first));
    }
    ReturnSpan(state, found->first, size);
    state.reservations.erase(found);
    return FLAGOS_OK;
  });
}

flagos_status_t MemoryMap(int32_t device, void* pointer, size_t size) {
  return Guarded("memory_map", [&] {
    if (const flagos_status_t status = CheckDevice("memory_map", device); status != FLAGOS_OK) return status;
    if (size == 0) return FLAGOS_OK;
    if (const flagos_status_t status = CheckAligned("memory_map", device, pointer, size); status != FLAGOS_OK) {
      return status;
    }
    Device& state = DeviceOf(device);
    const auto begin = reinterpret_cast<uintptr_t>(pointer);
    const std::lock_guard lock(state.mutex);
    Reservation* reservation = FindReservation(state, begin, size);
    if (reservation == nullptr) return NotReserved("memory_map", device, pointer, size);
    auto next = reservation->mappings.lower_bound(begin + size);
    if (next != reservation->mappings.begin()) {
      const auto& [mapped, length] = *std::prev(next);
      if (mapped + length > begin) {
        return Fail(FLAGOS_INVALID_VALUE, "memory_map", device,
                    "%zu bytes at %p overlap the mapping of %zu bytes at %p", size, pointer, length,
                    reinterpret_cast<void*>(mapped));
      }
    }
    if (size > TheState().config.memory - state.used) return OutOfMemory("memory_map", device, size);
    RaiseFaultHandler();
    reservation->mappings.emplace(begin, size);
    state.used += size;
    MakeFresh(state, begin, size);
    return FLAGOS_OK;
  });
}

flagos_status_t MemoryUnmap(int32_t device, void* pointer, size_t size) {
  return Guarded("memory_unmap", [&] {
    if (const flagos_status_t status = CheckDevice("memory_unmap", device); status != FLAGOS_OK) return status;
    if (size == 0) return FLAGOS_OK;
    if (OnWorker()) {
      return Fail(FLAGOS_INVALID_VALUE, "memory_unmap", device, "called from a host function, which may not wait");
    }
    if (const flagos_status_t status = CheckAligned("memory_unmap", device, pointer, size); status != FLAGOS_OK) {
      return status;
    }
    Device& state = DeviceOf(device);
    {
      const std::lock_guard lock(state.mutex);
      if (const flagos_status_t status = CheckWholeMappings(device, pointer, size); status != FLAGOS_OK) return status;
    }
    WaitForAllStreams();
    const std::lock_guard lock(state.mutex);
    // Another thread may have unmapped it meanwhile.
    if (const flagos_status_t status = CheckWholeMappings(device, pointer, size); status != FLAGOS_OK) return status;
    const auto begin = reinterpret_cast<uintptr_t>(pointer);
    auto& mappings = FindReservation(state, begin, size)->mappings;
    mappings.erase(mappings.lower_bound(begin), mappings.lower_bound(begin + size));
    MakeFreed(state, begin, size);
    state.used -= size;
    return FLAGOS_OK;
  });
}

}  // namespace flagos_host
