// SPDX-License-Identifier: Apache-2.0
// Turns torch_fl::Error into the c10 error that PyTorch users expect. Every call from a torch virtual or a binding into
// the runtime goes through Translate (or Swallow where torch forbids exceptions).
//
// Threads: any.
#pragma once

#include <c10/macros/Export.h>

#include <utility>

#include "base/status.h"

namespace torch_fl {

// OUT_OF_MEMORY -> c10::OutOfMemoryError, UNSUPPORTED -> c10::NotImplementedError, an error of the device itself
// (VENDOR_ERROR, DEVICE_LOST) -> c10::AcceleratorError with the status as code, anything else -> c10::Error.
[[noreturn]] C10_EXPORT void ThrowAsTorchError(const Error& error);

template <class F>
auto Translate(F&& f) -> decltype(std::forward<F>(f)()) {
  try {
    return std::forward<F>(f)();
  } catch (const Error& error) {
    ThrowAsTorchError(error);
  }
}

// For functions that torch declares noexcept or documents as never throwing.
template <class F, class T>
auto Swallow(F&& f, T otherwise) noexcept -> T {
  try {
    return std::forward<F>(f)();
  } catch (...) {
    return otherwise;
  }
}

}  // namespace torch_fl
