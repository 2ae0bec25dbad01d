// SPDX-License-Identifier: Apache-2.0
// The last error of a table with layers: of the layers' own refusals and the driver's failures, the calling thread's
// most recent one.
#pragma once

#include "torch_fl/driver.h"

namespace torch_fl::runtime::layers {

// Records the calling thread's failure and returns its status. `function` must live for ever. NOT_READY records nothing.
[[gnu::format(printf, 4, 5)]] flagos_status_t Refuse(flagos_status_t status, const char* function, int device,
                                                     const char* format, ...) noexcept;

// The innermost table of all: passes everything on, and notes when the driver itself failed. Lives for ever; `driver` too.
const flagos_driver_v1_t& WrapErrors(const flagos_driver_v1_t& driver);

}  // namespace torch_fl::runtime::layers
