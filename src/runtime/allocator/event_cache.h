// SPDX-License-Identifier: Apache-2.0
// Events that guard the reuse of memory, made once and used again. Threads: any.
#pragma once

#include "runtime/runtime.h"

namespace torch_fl::runtime {

// Records the end of what is queued on the stream now. NULL when nothing is: there is nothing to wait for. Throws what the
// driver reports.
Event* MarkStream(Stream* stream);
// The event is no longer needed.
void ReturnEvent(Event* event) noexcept;
// Destroys those that guard nothing. At exit.
void DestroyIdleEvents() noexcept;

}  // namespace torch_fl::runtime
