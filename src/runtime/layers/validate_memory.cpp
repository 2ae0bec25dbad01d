// SPDX-License-Identifier: Apache-2.0
// validate: blocks, reservations and page-locked host memory.
#include "runtime/layers/validate.h"

namespace torch_fl::runtime::layers::validate {
namespace {

uintptr_t Address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

std::string NotAStart(uintptr_t address, const Blocks& blocks, const char* maker) {
  const std::string text = Hex(address) + " is not the start of a live block of " + maker;
  if (const auto block = blocks.At(address)) {
    return text + ": it lies " + std::to_string(address - block->begin) + " bytes inside the block " +
           Hex(block->begin) + " of " + std::to_string(block->size) + " bytes";
  }
  return text + ": freed before, or never handed out";
}

flagos_status_t MemoryAlloc(int32_t device, size_t size, void** out) {
  const auto forward = [&] { return g_inner->memory_alloc(device, size, out); };
  return Checked("memory_alloc", forward, [&] {
    const flagos_status_t status = forward();
    if (status != FLAGOS_OK || size == 0) return status;
    State& state = TheState();
    const std::lock_guard lock(state.mutex);
    DeviceState& memory = state.devices[device];
    const uintptr_t begin = Address(*out);
    if (begin == 0 || memory.memory.Overlaps(begin, size)) {
      return Misuse(FLAGOS_INVALID_VALUE, "memory_alloc", device,
                    "a fault of the driver: it handed out " + Hex(begin) + " +" + std::to_string(size) +
                        " bytes, which is NULL or overlaps a live block");
    }
    memory.memory.Add({begin, size, false});
    return status;
  });
}

// Takes the history of the range out while `give` gives its memory back: the driver may hand the same addresses to
// another thread at once. What the driver refuses to take back is put back by `undo`.
template <class Give, class Undo>
flagos_status_t GiveBack(History* history, History::Nodes taken, Give&& give, Undo&& undo) {
  const flagos_status_t status = give();
  if (status == FLAGOS_OK) return status;
  const std::lock_guard lock(TheState().mutex);
  history->Restore(std::move(taken));
  undo();
  return status;
}

flagos_status_t MemoryFree(int32_t device, void* pointer) {
  const auto forward = [&] { return g_inner->memory_free(device, pointer); };
  return Checked("memory_free", forward, [&] {
    if (pointer == nullptr || !KnownDevice(device)) return forward();
    State& state = TheState();
    std::optional<Blocks::Block> block;
    History::Nodes taken;
    DeviceState* memory = nullptr;
    {
      const std::lock_guard lock(state.mutex);
      memory = &state.devices[device];
      const auto found = memory->memory.At(Address(pointer));
      if (found && found->begin == Address(pointer) && !found->mapped) block = memory->memory.Take(found->begin);
      if (!block) {
        return Misuse(FLAGOS_INVALID_VALUE, "memory_free", device,
                      NotAStart(Address(pointer), memory->memory, "memory_alloc") + " (" + DeviceName(device) + ")");
      }
      taken = memory->history.Take(block->begin, block->begin + block->size);
    }
    return GiveBack(&memory->history, std::move(taken), forward, [&] { memory->memory.Add(*block); });
  });
}

// ---- Page-locked host memory. The interface does not say that giving it back waits for copies, so a copy that nobody
// saw complete is an error.

flagos_status_t HostAlloc(size_t size, void** out) {
  const auto forward = [&] { return g_inner->host_alloc(size, out); };
  return Checked("host_alloc", forward, [&] {
    const flagos_status_t status = forward();
    if (status != FLAGOS_OK || size == 0) return status;
    State& state = TheState();
    const std::lock_guard lock(state.mutex);
    state.pinned.Add({Address(*out), size, false});
    return status;
  });
}

flagos_status_t HostRegister(void* pointer, size_t size) {
  const auto forward = [&] { return g_inner->host_register(pointer, size); };
  return Checked("host_register", forward, [&] {
    const flagos_status_t status = forward();
    if (status != FLAGOS_OK || size == 0) return status;
    State& state = TheState();
    const std::lock_guard lock(state.mutex);
    state.registered.Add({Address(pointer), size, false});
    return status;
  });
}

template <class Forward>
flagos_status_t GiveHostBack(const char* entry, void* pointer, Blocks State::*blocks, const char* maker,
                             Forward&& forward) {
  if (pointer == nullptr) return forward();
  State& state = TheState();
  Blocks::Block block;
  History::Nodes taken;
  {
    const std::lock_guard lock(state.mutex);
    const auto found = (state.*blocks).At(Address(pointer));
    if (!found || found->begin != Address(pointer)) {
      return Misuse(FLAGOS_INVALID_VALUE, entry, -1, NotAStart(Address(pointer), state.*blocks, maker));
    }
    block = *found;
    if (const flagos_status_t status = state.CheckIdle(entry, block.begin, block.size); status != FLAGOS_OK) {
      return status;
    }
    (state.*blocks).Take(block.begin);
    taken = state.host_history.Take(block.begin, block.begin + block.size);
  }
  return GiveBack(&state.host_history, std::move(taken), forward, [&] { (state.*blocks).Add(block); });
}

flagos_status_t HostFree(void* pointer) {
  const auto forward = [&] { return g_inner->host_free(pointer); };
  return Checked("host_free", forward,
                 [&] { return GiveHostBack("host_free", pointer, &State::pinned, "host_alloc", forward); });
}

flagos_status_t HostUnregister(void* pointer) {
  const auto forward = [&] { return g_inner->host_unregister(pointer); };
  return Checked("host_unregister", forward, [&] {
    return GiveHostBack("host_unregister", pointer, &State::registered, "host_register", forward);
  });
}

// ---- Address space apart from memory

std::string RangeText(const void* pointer, size_t size) {
  return Hex(pointer) + " +" + std::to_string(size) + " bytes";
}

flagos_status_t CheckGranularity(const char* entry, int device, uintptr_t begin, size_t size) {
  size_t bytes = 0;
  if (g_inner->memory_granularity == nullptr) return FLAGOS_OK;
  // A bad device is the call's own failure to report.
  if (g_inner->memory_granularity(device, &bytes) != FLAGOS_OK) return FLAGOS_OK;
  if (bytes == 0 || (begin % bytes == 0 && size % bytes == 0)) return FLAGOS_OK;
  return Misuse(FLAGOS_INVALID_VALUE, entry, device,
                Hex(begin) + " +" + std::to_string(size) + " bytes is not a multiple of memory_granularity, " +
                    std::to_string(bytes));
}

flagos_status_t MemoryReserve(int32_t device, size_t size, void** out) {
  const auto forward = [&] { return g_inner->memory_reserve(device, size, out); };
  return Checked("memory_reserve", forward, [&] {
    if (!KnownDevice(device)) return forward();
    if (const auto status = CheckGranularity("memory_reserve", device, 0, size); status != FLAGOS_OK) return status;
    const flagos_status_t status = forward();
    if (status != FLAGOS_OK || size == 0) return status;
    State& state = TheState();
    const std::lock_guard lock(state.mutex);
    state.devices[device].reservations.Add({Address(*out), size, false});
    return status;
  });
}

flagos_status_t MemoryRelease(int32_t device, void* pointer, size_t size) {
  const auto forward = [&] { return g_inner->memory_release(device, pointer, size); };
  return Checked("memory_release", forward, [&] {
    if (size == 0 || !KnownDevice(device)) return forward();
    State& state = TheState();
    DeviceState* memory = nullptr;
    {
      const std::lock_guard lock(state.mutex);
      memory = &state.devices[device];
      const auto found = memory->reservations.At(Address(pointer));
      if (!found || found->begin != Address(pointer) || found->size != size) {
        return Misuse(FLAGOS_INVALID_VALUE, "memory_release", device,
                      RangeText(pointer, size) + " is not a whole live reservation of " + DeviceName(device));
      }
      if (memory->memory.Overlaps(found->begin, found->size)) {
        return Misuse(FLAGOS_INVALID_VALUE, "memory_release", device,
                      RangeText(pointer, size) + " still has memory mapped in it; unmap it first");
      }
      memory->reservations.Take(found->begin);
    }
    return GiveBack(&memory->history, {}, forward, [&] { memory->reservations.Add({Address(pointer), size, false}); });
  });
}

flagos_status_t MemoryMap(int32_t device, void* pointer, size_t size) {
  const auto forward = [&] { return g_inner->memory_map(device, pointer, size); };
  return Checked("memory_map", forward, [&] {
    if (size == 0 || !KnownDevice(device)) return forward();
    const uintptr_t begin = Address(pointer);
    if (const auto status = CheckGranularity("memory_map", device, begin, size); status != FLAGOS_OK) return status;
    State& state = TheState();
    DeviceState* memory = nullptr;
    {
      const std::lock_guard lock(state.mutex);
      memory = &state.devices[device];
      if (!memory->reservations.Holds(begin, size)) {
        return Misuse(FLAGOS_INVALID_VALUE, "memory_map", device,
                      RangeText(pointer, size) + " is not inside one live reservation of " + DeviceName(device));
      }
      if (memory->memory.Overlaps(begin, size)) {
        return Misuse(FLAGOS_INVALID_VALUE, "memory_map", device,
                      RangeText(pointer, size) + " has memory mapped in it already");
      }
      memory->memory.Add({begin, size, true});  // now: two threads may not both map it
    }
    return GiveBack(&memory->history, {}, forward, [&] { memory->memory.Take(begin); });
  });
}

flagos_status_t MemoryUnmap(int32_t device, void* pointer, size_t size) {
  const auto forward = [&] { return g_inner->memory_unmap(device, pointer, size); };
  return Checked("memory_unmap", forward, [&] {
    if (size == 0 || !KnownDevice(device)) return forward();
    const uintptr_t begin = Address(pointer);
    State& state = TheState();
    DeviceState* memory = nullptr;
    std::vector<Blocks::Block> mappings;
    History::Nodes taken;
    {
      const std::lock_guard lock(state.mutex);
      memory = &state.devices[device];
      uintptr_t at = begin;
      while (at - begin < size) {
        const auto block = memory->memory.At(at);
        if (!block || !block->mapped || block->begin != at) break;
        mappings.push_back(*block);
        at += block->size;
      }
      if (at - begin != size) {
        return Misuse(FLAGOS_INVALID_VALUE, "memory_unmap", device,
                      RangeText(pointer, size) + " is not made of whole live mappings of " + DeviceName(device));
      }
      for (const auto& block : mappings) memory->memory.Take(block.begin);
      taken = memory->history.Take(begin, begin + size);
    }
    return GiveBack(&memory->history, std::move(taken), forward, [&] {
      for (const auto& block : mappings) memory->memory.Add(block);
    });
  });
}

}  // namespace

void InstallMemory(flagos_driver_v1_t* table) {
  table->memory_alloc = &MemoryAlloc;
  table->memory_free = &MemoryFree;
  Put(table->host_alloc, &HostAlloc);
  Put(table->host_free, &HostFree);
  Put(table->host_register, &HostRegister);
  Put(table->host_unregister, &HostUnregister);
  Put(table->memory_reserve, &MemoryReserve);
  Put(table->memory_release, &MemoryRelease);
  Put(table->memory_map, &MemoryMap);
  Put(table->memory_unmap, &MemoryUnmap);
}

}  // namespace torch_fl::runtime::layers::validate
