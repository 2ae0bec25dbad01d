// SPDX-License-Identifier: Apache-2.0
// Address space of a device: one memory file, mapped once, or twice when `protect` is on.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "host/host.h"

namespace flagos_host {
namespace {

// Address space beyond the memory itself: fragmentation must not end an allocation that fits by its size, and reservations
// take none of the memory. All devices together stay within a share of a process's 47 bits.
size_t ArenaSize(uint64_t memory) {
  constexpr size_t kAlignment = size_t{1} << 30;
  constexpr uint64_t kAllDevices = uint64_t{1} << 42;
  const auto share = kAllDevices / static_cast<uint64_t>(TheState().config.devices);
  const uint64_t wanted = std::max(memory * 2, std::min(memory * 16, share));
  return (static_cast<size_t>(wanted) + kAlignment) / kAlignment * kAlignment;
}

flagos_status_t MapFailed(int device, const char* what) {
  return Fail(FLAGOS_OUT_OF_MEMORY, "memory_alloc", device, "%s for %llu bytes of device memory: %s", what,
              static_cast<unsigned long long>(TheState().config.memory), std::strerror(errno));
}

}  // namespace

flagos_status_t MapArena(int device, Arena* arena) {
  const Config& config = TheState().config;
  const size_t size = ArenaSize(config.memory);
  const int file = memfd_create("flagos-host-device", MFD_CLOEXEC);
  if (file < 0) return MapFailed(device, "memfd_create");
  if (ftruncate(file, static_cast<off_t>(size)) != 0) {
    close(file);
    return MapFailed(device, "ftruncate");
  }
  constexpr int kFlags = MAP_SHARED | MAP_NORESERVE;
  void* host = mmap(nullptr, size, PROT_READ | PROT_WRITE, kFlags, file, 0);
  void* view = host;
  if (config.protect && host != MAP_FAILED) view = mmap(nullptr, size, PROT_NONE, kFlags, file, 0);
  close(file);  // the mappings keep the memory
  if (host == MAP_FAILED) return MapFailed(device, "mmap of the host view");
  if (view == MAP_FAILED) {
    const flagos_status_t status = MapFailed(device, "mmap of the device view");
    munmap(host, size);
    return status;
  }
  *arena = {reinterpret_cast<uintptr_t>(view), reinterpret_cast<uintptr_t>(host), size};
  return FLAGOS_OK;
}

void ReleasePages(const Arena& arena, uintptr_t device, size_t size) {
  // MADV_REMOVE punches a hole into the file: the pages leave both mappings. A failure only keeps them resident.
  madvise(reinterpret_cast<void*>(device - arena.device + arena.host), size, MADV_REMOVE);
}

}  // namespace flagos_host
