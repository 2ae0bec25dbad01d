// SPDX-License-Identifier: Apache-2.0
// The thread-local last error that the driver interface asks for. One per driver library: include it, don't share it.
#pragma once

#include <cstdarg>
#include <cstdio>

#include "torch_fl/driver.h"

namespace flagos_sdk {

struct ErrorSlot {
  flagos_error_t error;
  char text[512];
};

// Plain data without a constructor: usable from any thread at any time, also while a thread ends.
inline constinit thread_local ErrorSlot t_error = {};

// Records a failure and returns its status: `return Fail(FLAGOS_INVALID_VALUE, "copy", device, "...", ...)`.
[[gnu::format(printf, 4, 5)]] inline flagos_status_t Fail(flagos_status_t status, const char* function, int device,
                                                          const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(t_error.text, sizeof t_error.text, format, arguments);
  va_end(arguments);
  t_error.error = {sizeof(flagos_error_t), status, device, 0, t_error.text, function};
  return status;
}

// The same for a failure that the vendor reported: `code` is its own number.
[[gnu::format(printf, 5, 6)]] inline flagos_status_t FailVendor(flagos_status_t status, const char* function,
                                                                int device, int64_t code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(t_error.text, sizeof t_error.text, format, arguments);
  va_end(arguments);
  t_error.error = {sizeof(flagos_error_t), status, device, code, t_error.text, function};
  return status;
}

inline const flagos_error_t* LastError() {
  ErrorSlot& slot = t_error;
  if (slot.error.vendor_text == nullptr) slot.error = {sizeof(flagos_error_t), FLAGOS_OK, -1, 0, "", ""};
  return &slot.error;
}

}  // namespace flagos_sdk
