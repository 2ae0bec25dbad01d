// SPDX-License-Identifier: Apache-2.0
// Dense copies that the device's own queue does: between the host and a device, and between devices.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_fl {

// A cheap first look: may this copy_ be one for the queue? True for tensors of different devices, and for every copy where no
// kernel can run on device memory.
bool MayCopyDirectly(const at::Tensor& self, const at::Tensor& source, bool non_blocking);

// Does it, with temporaries where dtype or layout differ (converted on the source's side). False, and nothing done, when a kernel
// should do it after all: a blocking copy with a host view, pageable memory with a host view, exotic layouts.
bool CopyDirectly(at::Tensor& self, const at::Tensor& source, bool non_blocking);

}  // namespace torch_fl
