// SPDX-License-Identifier: Apache-2.0
// Device blocks, pinned host memory, and who owns an address.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "host/host.h"

namespace flagos_host {
namespace {

constexpr uint8_t kFreshPoison = 0xFF;  // NaN in every floating-point type, -1 in every integer
constexpr uint8_t kFreedPoison = 0xFD;
constexpr size_t kMisalignSlack = 64;

const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

// 16, 32 or 48 beyond a multiple of 64, the same sequence in every run.
size_t NextMisalignment() {
  static std::atomic<uint32_t> turn{0};
  const uint32_t mixed = (turn.fetch_add(1, std::memory_order_relaxed) + 1) * 2654435761u;
  return size_t{16} * (1 + (mixed >> 16) % 3);
}

void* HostView(const Device& state, uintptr_t address) {
  return reinterpret_cast<void*>(address - state.arena.device + state.arena.host);
}

}  // namespace

flagos_status_t EnsureArena(int device) {
  Device& state = DeviceOf(device);
  if (state.mapped.load(std::memory_order_relaxed)) return FLAGOS_OK;
  ArmFork();
  if (const flagos_status_t status = MapArena(device, &state.arena); status != FLAGOS_OK) return status;
  state.free_spans.emplace(state.arena.device, state.arena.size);
  if (TheState().config.protect) {
    WatchArena(device, state.arena);
    if (const flagos_status_t status = InstallFaultHandler(); status != FLAGOS_OK) return status;
  }
  state.mapped.store(true, std::memory_order_release);
  return FLAGOS_OK;
}

uintptr_t TakeSpan(Device& state, size_t size, size_t alignment) {
  for (auto it = state.free_spans.begin(); it != state.free_spans.end(); ++it) {
    const auto [span, length] = *it;
    const uintptr_t begin = (span + alignment - 1) / alignment * alignment;
    if (begin - span > length || size > length - (begin - span)) continue;
    state.free_spans.erase(it);
    if (begin > span) state.free_spans.emplace(span, begin - span);
    if (span + length > begin + size) state.free_spans.emplace(begin + size, span + length - begin - size);
    return begin;
  }
  return 0;
}

void ReturnSpan(Device& state, uintptr_t begin, size_t size) {
  auto next = state.free_spans.lower_bound(begin);
  if (next != state.free_spans.end() && begin + size == next->first) {
    size += next->second;
    next = state.free_spans.erase(next);
  }
  if (next != state.free_spans.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      previous->second += size;
      return;
    }
  }
  state.free_spans.emplace(begin, size);
}

namespace {

Range BlockAt(const Device& state, uintptr_t address) {
  auto next = state.blocks.upper_bound(address);
  if (next == state.blocks.begin()) return {};
  const Range range{std::prev(next)->first, std::prev(next)->second.size};
  return range.Holds(address, 1) ? range : Range{};
}

// The mappings of the reservation that holds the address, and the one at the address; false when nothing is mapped there.
using Mappings = std::map<uintptr_t, size_t>;
bool MappingAt(const Device& state, uintptr_t address, const Mappings** mappings, Mappings::const_iterator* out) {
  auto owner = state.reservations.upper_bound(address);
  if (owner == state.reservations.begin()) return false;
  *mappings = &std::prev(owner)->second.mappings;
  auto next = (*mappings)->upper_bound(address);
  if (next == (*mappings)->begin()) return false;
  *out = std::prev(next);
  return Range{(*out)->first, (*out)->second}.Holds(address, 1);
}

// A reservation can have thousands of mappings, so only those that the bytes need are visited.
bool HoldsMemory(const Device& state, uintptr_t address, size_t size) {
  if (const Range block = BlockAt(state, address); block.size != 0) return block.Holds(address, size);
  const Mappings* mappings = nullptr;
  Mappings::const_iterator it;
  if (!MappingAt(state, address, &mappings, &it)) return false;
  size_t reached = it->first + it->second - address;
  for (++it; reached < size && it != mappings->end() && it->first == address + reached; ++it) reached += it->second;
  return reached >= size;
}

// The block, or the run of touching mappings, that holds the address; empty when none does.
Range FindMemory(const Device& state, uintptr_t address) {
  if (const Range block = BlockAt(state, address); block.size != 0) return block;
  const Mappings* mappings = nullptr;
  Mappings::const_iterator first;
  if (!MappingAt(state, address, &mappings, &first)) return {};
  uintptr_t stop = first->first + first->second;
  for (auto it = std::next(first); it != mappings->end() && it->first == stop; ++it) stop += it->second;
  while (first != mappings->begin() && std::prev(first)->first + std::prev(first)->second == first->first) --first;
  return {first->first, stop - first->first};
}

}  // namespace

void MakeFresh(Device& state, uintptr_t begin, size_t size) {
  if (TheState().config.poison) std::memset(HostView(state, begin), kFreshPoison, size);
}

void MakeFreed(Device& state, uintptr_t begin, size_t size) {
  if (TheState().config.poison) {
    std::memset(HostView(state, begin), kFreedPoison, size);
  } else {
    ReleasePages(state.arena, begin, size);
  }
  if (TheState().config.protect) ForgetFaults(begin, size);
}

flagos_status_t OutOfMemory(const char* function, int device, size_t size) {
  const uint64_t memory = TheState().config.memory;
  return Fail(FLAGOS_OUT_OF_MEMORY, function, device, "%zu bytes asked for, %llu of %llu are free", size,
              static_cast<unsigned long long>(memory - DeviceOf(device).used), static_cast<unsigned long long>(memory));
}

size_t MemoryAlignment() { return g_state.load() != nullptr && TheState().config.misalign ? 16 : 4096; }

flagos_status_t MemoryAlloc(int32_t device, size_t size, void** out_pointer) {
  return Guarded("memory_alloc", [&] {
    if (const flagos_status_t status = CheckDevice("memory_alloc", device); status != FLAGOS_OK) return status;
    if (size == 0) {
      *out_pointer = nullptr;
      return FLAGOS_OK;
    }
    const Config& config = TheState().config;
    Device& state = DeviceOf(device);
    const std::lock_guard lock(state.mutex);
    // A deliberate misalignment costs address space, not memory that the caller could see missing.
    if (size > config.memory - state.used) return OutOfMemory("memory_alloc", device, size);
    const size_t charge = (size + kPage - 1) / kPage * kPage;
    if (charge > config.memory - state.used) return OutOfMemory("memory_alloc", device, size);
    if (const flagos_status_t status = EnsureArena(device); status != FLAGOS_OK) return status;
    RaiseFaultHandler();
    const size_t shift = config.misalign ? NextMisalignment() : 0;
    const size_t span_size = (size + (config.misalign ? kMisalignSlack : 0) + kPage - 1) / kPage * kPage;
    const uintptr_t span = TakeSpan(state, span_size, kPage);
    if (span == 0) {
      return Fail(FLAGOS_OUT_OF_MEMORY, "memory_alloc", device,
                  "no address space for %zu bytes; device %d has %zu in all", size, device, state.arena.size);
    }
    state.used += charge;
    const uintptr_t address = span + shift;
    state.blocks.emplace(address, Block{span, span_size, size});
    MakeFresh(state, address, size);
    *out_pointer = reinterpret_cast<void*>(address);
    return FLAGOS_OK;
  });
}

flagos_status_t MemoryFree(int32_t device, void* pointer) {
  // Before any lock: the child shares the parent's pages and may have inherited held locks.
  if (pointer == nullptr || g_forked.load(std::memory_order_relaxed)) return FLAGOS_OK;
  return Guarded("memory_free", [&] {
    if (const flagos_status_t status = CheckDevice("memory_free", device); status != FLAGOS_OK) return status;
    if (OnWorker()) {
      return Fail(FLAGOS_INVALID_VALUE, "memory_free", device, "called from a host function, which may not wait");
    }
    Device& state = DeviceOf(device);
    const auto unknown = [&] {
      return Fail(FLAGOS_INVALID_VALUE, "memory_free", device, "%p is not the start of a block of device %d", pointer,
                  device);
    };
    {
      const std::lock_guard lock(state.mutex);
      if (state.blocks.count(reinterpret_cast<uintptr_t>(pointer)) == 0) return unknown();
    }
    WaitForAllStreams();
    const std::lock_guard lock(state.mutex);
    const auto found = state.blocks.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == state.blocks.end()) return unknown();  // another thread freed it meanwhile
    const Block block = found->second;
    state.blocks.erase(found);
    MakeFreed(state, block.span, block.span_size);
    state.used -= (block.size + kPage - 1) / kPage * kPage;
    ReturnSpan(state, block.span, block.span_size);
    return FLAGOS_OK;
  });
}

flagos_status_t HostViewOffset(int32_t device, ptrdiff_t* out_offset) {
  return Guarded("host_view_offset", [&] {
    if (const flagos_status_t status = CheckDevice("host_view_offset", device); status != FLAGOS_OK) return status;
    Device& state = DeviceOf(device);
    const std::lock_guard lock(state.mutex);
    if (const flagos_status_t status = EnsureArena(device); status != FLAGOS_OK) return status;
    *out_offset = static_cast<ptrdiff_t>(state.arena.host - state.arena.device);
    return FLAGOS_OK;
  });
}

uintptr_t HostAddress(int device, const void* pointer, size_t size) {
  Device& state = DeviceOf(device);
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard lock(state.mutex);
  if (!HoldsMemory(state, address, size)) return 0;
  return address - state.arena.device + state.arena.host;
}

int OwnerOf(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  for (int device = 0; device < TheState().config.devices; ++device) {
    const Device& state = DeviceOf(device);
    if (state.mapped.load(std::memory_order_acquire) && state.arena.Holds(address)) return device;
  }
  return -1;
}

int ViewOf(uintptr_t address) {
  for (int device = 0; device < TheState().config.devices; ++device) {
    const Device& state = DeviceOf(device);
    if (state.mapped.load(std::memory_order_acquire) && address - state.arena.host < state.arena.size) return device;
  }
  return -1;
}

// ---- Pinned host memory. Nothing is really locked: the simulation only has to know which memory counts as pinned.

namespace {

bool InRanges(const std::map<uintptr_t, size_t>& ranges, uintptr_t address, size_t size, Range* out) {
  auto next = ranges.upper_bound(address);
  if (next == ranges.begin()) return false;
  const Range range{std::prev(next)->first, std::prev(next)->second};
  if (!range.Holds(address, size)) return false;
  if (out != nullptr) *out = range;
  return true;
}

bool Overlaps(const std::map<uintptr_t, size_t>& ranges, uintptr_t address, size_t size) {
  auto next = ranges.lower_bound(address + size);
  return next != ranges.begin() && std::prev(next)->first + std::prev(next)->second > address;
}

bool FindPinned(uintptr_t address, size_t size, Range* out) {
  State& state = TheState();
  const std::lock_guard lock(state.pinned_mutex);
  return InRanges(state.pinned, address, size, out) || InRanges(state.registered, address, size, out);
}

}  // namespace

HostKind KindOf(const void* pointer, size_t size) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  State& state = TheState();
  const std::lock_guard lock(state.pinned_mutex);
  if (InRanges(state.pinned, address, size, nullptr) || InRanges(state.registered, address, size, nullptr)) {
    return HostKind::kPinned;
  }
  return InRanges(state.pinned, address, 1, nullptr) ? HostKind::kPastPinned : HostKind::kPageable;
}

flagos_status_t HostAlloc(size_t size, void** out_pointer) {
  return Guarded("host_alloc", [&] {
    if (size == 0) {
      *out_pointer = nullptr;
      return FLAGOS_OK;
    }
    void* pointer = nullptr;
    if (posix_memalign(&pointer, kPage, size) != 0) {
      return Fail(FLAGOS_OUT_OF_MEMORY, "host_alloc", -1, "no host memory for %zu bytes", size);
    }
    State& state = TheState();
    const std::lock_guard lock(state.pinned_mutex);
    state.pinned.emplace(reinterpret_cast<uintptr_t>(pointer), size);
    *out_pointer = pointer;
    return FLAGOS_OK;
  });
}

flagos_status_t HostFree(void* pointer) {
  if (pointer == nullptr || g_forked.load(std::memory_order_relaxed)) return FLAGOS_OK;
  return Guarded("host_free", [&] {
    if (OnWorker()) return Fail(FLAGOS_INVALID_VALUE, "host_free", -1, "called from a host function");
    State& state = TheState();
    {
      const std::lock_guard lock(state.pinned_mutex);
      if (state.pinned.erase(reinterpret_cast<uintptr_t>(pointer)) == 0) {
        return Fail(FLAGOS_INVALID_VALUE, "host_free", -1, "%p was not made by host_alloc", pointer);
      }
    }
    WaitForAllStreams();
    std::free(pointer);
    return FLAGOS_OK;
  });
}

flagos_status_t HostRegister(void* pointer, size_t size) {
  return Guarded("host_register", [&] {
    if (size == 0) return FLAGOS_OK;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (pointer == nullptr || size - 1 > UINTPTR_MAX - address || OwnerOf(pointer) >= 0 ||
        OwnerOf(reinterpret_cast<const void*>(address + size - 1)) >= 0) {
      return Fail(FLAGOS_INVALID_VALUE, "host_register", -1, "%zu bytes at %p are not host memory", size, pointer);
    }
    State& state = TheState();
    const std::lock_guard lock(state.pinned_mutex);
    if (Overlaps(state.pinned, address, size) || Overlaps(state.registered, address, size)) {
      return Fail(FLAGOS_ALREADY, "host_register", -1, "some of the %zu bytes at %p are page-locked already", size,
                  pointer);
    }
    state.registered.emplace(address, size);
    return FLAGOS_OK;
  });
}

flagos_status_t HostUnregister(void* pointer) {
  if (g_forked.load(std::memory_order_relaxed)) return FLAGOS_OK;
  return Guarded("host_unregister", [&] {
    if (OnWorker()) return Fail(FLAGOS_INVALID_VALUE, "host_unregister", -1, "called from a host function");
    State& state = TheState();
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const auto unknown = [&] {
      return Fail(FLAGOS_INVALID_VALUE, "host_unregister", -1, "%p was not registered", pointer);
    };
    {
      const std::lock_guard lock(state.pinned_mutex);
      if (state.registered.count(address) == 0) return unknown();
    }
    WaitForAllStreams();  // copies read a registered source when they run
    const std::lock_guard lock(state.pinned_mutex);
    return state.registered.erase(address) != 0 ? FLAGOS_OK : unknown();
  });
}

flagos_status_t PointerInfo(const void* pointer, flagos_pointer_info_t* info) {
  return Guarded("pointer_info", [&] {
    flagos_pointer_info_t full{};
    full.struct_size = info->struct_size;
    full.device = -1;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    Range pinned;
    if (const int owner = OwnerOf(pointer); owner >= 0) {
      Device& state = DeviceOf(owner);
      const std::lock_guard lock(state.mutex);
      if (const Range range = FindMemory(state, address); range.size != 0) {
        full.space = FLAGOS_SPACE_DEVICE;
        full.device = owner;
        full.base = reinterpret_cast<void*>(range.begin);
        full.size = range.size;
      }
    } else if (FindPinned(address, 1, &pinned)) {
      full.space = FLAGOS_SPACE_PINNED;
      full.base = reinterpret_cast<void*>(pinned.begin);
      full.size = pinned.size;
    }
    std::memcpy(info, &full, std::min<size_t>(info->struct_size, sizeof full));
    return FLAGOS_OK;
  });
}

}  // namespace flagos_host
