// SPDX-License-Identifier: Apache-2.0
// The one place that knows torch versions. Every branch on TORCH_FL_TORCH_AT_LEAST(major, minor) can be deleted once
// the oldest supported torch (2.10) has reached that version.
#pragma once

// Not <torch/version.h>: under our own include path that name finds this file.
#include <torch/headeronly/version.h>

#define TORCH_FL_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !TORCH_FL_TORCH_AT_LEAST(2, 10)
#error "torch_fl needs torch 2.10 or newer"
#endif

// c10::DeviceCapability came within the 2.10 line, so its header is the test.
#if __has_include(<c10/core/DeviceCapability.h>)
#define TORCH_FL_HAS_DEVICE_CAPABILITY 1
#else
#define TORCH_FL_HAS_DEVICE_CAPABILITY 0
#endif
