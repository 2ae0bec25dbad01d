// SPDX-License-Identifier: Apache-2.0
// The caching allocator of page-locked host memory. A freed block is handed out again only when every copy that was
// recorded on it has finished, so a caller may free right after a non_blocking copy.
//
// Threads: any. Fork: in a child HostFree does nothing, the rest throws.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/allocator.h"

namespace torch_fl::runtime {

class Stream;

// False when the driver has no host_alloc: then HostAllocate throws and callers use ordinary memory.
bool HostMemoryAvailable();
void* HostAllocate(size_t size);  // NULL for 0 bytes; sizes are rounded up to a power of two, at least 512 bytes
void HostFree(void* pointer) noexcept;
// The block that holds the address is used by work queued on `stream` up to now. False when it is not a block of ours.
// Copy does this by itself.
bool HostRecordStream(const void* pointer, Stream* stream);
// Page-locked by anybody: this allocator, host_register, or another library that the driver knows of. Never throws.
bool IsPinned(const void* pointer) noexcept;
void HostEmptyCache();

struct HostMemoryStats {
  Stat allocation;          // blocks that callers hold
  Stat allocated_bytes;     // of those, rounded sizes
  Stat segment;             // blocks held from the driver
  Stat reserved_bytes;
  int64_t num_host_alloc = 0;
  int64_t num_host_free = 0;
  int64_t host_alloc_us = 0;  // spent in the driver, total
  int64_t host_free_us = 0;
};
HostMemoryStats GetHostMemoryStats();
void ResetHostPeakStats();
void ResetHostAccumulatedStats();

}  // namespace torch_fl::runtime
