// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory, straight from the driver.
//
// Threads: any.
#pragma once

#include <c10/core/Allocator.h>

namespace torch_fl {

// Over the driver's host_alloc; torch's CPU allocator when the driver has none (copies from pageable memory are
// staged). Loads the driver; throws torch_fl::Error when that fails.
c10::Allocator* PinnedAllocator();

// Is the address page-locked, by the driver's word or ours? False without a device. Never throws, creates no context.
bool IsPinned(const void* pointer) noexcept;

}  // namespace torch_fl
