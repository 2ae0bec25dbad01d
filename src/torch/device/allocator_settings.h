// SPDX-License-Identifier: Apache-2.0
// torch's allocator settings (PYTORCH_ALLOC_CONF), which have one parser for all devices, carried to the runtime's allocator.
#pragma once

#include <c10/macros/Export.h>

#include <string>

namespace torch_fl {

// Reads them now and whenever torch parses new ones. Once.
void FollowAllocatorSettings();

// Parses `settings` as PYTORCH_ALLOC_CONF: torch's own setting changes, and with it every device's allocator that follows it.
C10_EXPORT void SetAllocatorSettings(const std::string& settings);

}  // namespace torch_fl
