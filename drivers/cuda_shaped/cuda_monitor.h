// SPDX-License-Identifier: Apache-2.0
// Questions about CUDA devices answered by the monitoring library, which makes no context and survives a fork.
#pragma once

#include <cstdint>

namespace flagos_cuda_shaped {

// Devices that CUDA will show to this process, or -1 when only CUDA itself can tell.
int CountQuietly();
// Free and total bytes of the device at a PCI address such as "0000:17:00.0"; false when unknown.
bool MemoryQuietly(const char* pci, uint64_t* free_bytes, uint64_t* total_bytes);

// How many devices CUDA_VISIBLE_DEVICES=`list` leaves of `total`: up to the first number out of range. -1 for what is not a
// plain list of different numbers (device UUIDs, MIG), whose rules are CUDA's own.
int CountVisible(const char* list, int total);

}  // namespace flagos_cuda_shaped
