// SPDX-License-Identifier: Apache-2.0
// Tensors of the backend that owns the devices, over the bytes of flagos tensors, and the reverse. Delegated devices only.
//
// Threads: any.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/macros/Export.h>

namespace torch_fl {

// A new tensor of the target over the same twin: same shape, strides, offset, conj and neg bits; no autograd history.
// Throws for tensors that require grad, are not strided, or live elsewhere. A tensor of the target is returned as it is.
C10_EXPORT at::Tensor ToNative(const at::Tensor& tensor);

// A new flagos tensor over the same bytes; the target's storage becomes its twin.
C10_EXPORT at::Tensor FromNative(const at::Tensor& tensor);

}  // namespace torch_fl
