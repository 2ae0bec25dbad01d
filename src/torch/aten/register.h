// SPDX-License-Identifier: Apache-2.0
// The few operators whose flagos kernel is ours.
#pragma once

namespace torch_fl {

// Registers them with PrivateUse1. Called by RegisterRoutes before routes are scanned, so that they win.
void RegisterOwnedOps();

void RegisterFactories();      // empty.memory_format, empty_strided
void RegisterViews();          // view, as_strided, unfold ...: metadata only, ATen's own kernels
void RegisterStorageOps();     // set_, resize_, record_stream, _has_compatible_shallow_copy_type
void RegisterCopies();         // copies that cross the border of the device, sparse ones included

}  // namespace torch_fl
