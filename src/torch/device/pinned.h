// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory for torch: an at::HostAllocator over the runtime's caching allocator (runtime/pinned.h).
//
// Threads: any.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace torch_fl {

// torch's CPU allocator when the driver has no page-locked memory (copies from pageable memory are staged). Loads the driver;
// throws torch_fl::Error when that fails.
c10::Allocator* PinnedAllocator();

// Is the address page-locked, by the driver's word or ours? False without a device. Never throws, creates no context.
bool IsPinned(const void* pointer) noexcept;

// Makes at::getHostAllocator(flagos) answer. Once; loads no driver.
void RegisterPinned();

}  // namespace torch_fl
