// SPDX-License-Identifier: Apache-2.0
// The c10::DeviceAllocator of flagos over the runtime's caching allocator.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace torch_fl {

// Registers the allocator for PrivateUse1, and reads torch's allocator settings now and whenever they change. Once.
void RegisterAllocator();

c10::DeviceAllocator* FlagosAllocator();

// Memory of flagos:device as the target sees it (host view): pointer, context and deleter fit the target's raw_allocate contract.
c10::DataPtr AllocateTargetView(size_t nbytes, c10::DeviceIndex device, const char* op);
// Memory of flagos:device under its device address. Null for 0 bytes.
c10::DataPtr AllocateDevice(size_t nbytes, c10::DeviceIndex device, const char* op);

// Does the target address lie at the start of a live block of the device pool? Fills *device if so.
bool OwnsTargetAddress(const void* address, int* device) noexcept;
// Frees a block by its target address. False when the address is not the pool's.
bool FreeTargetAddress(void* address) noexcept;
// target address = device address + offset, for flagos:device. 0 without a host view.
ptrdiff_t TargetOffset(c10::DeviceIndex device);

}  // namespace torch_fl
