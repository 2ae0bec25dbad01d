// SPDX-License-Identifier: Apache-2.0
// The alias of a strided flagos tensor: a TensorImpl of the target that shares its bytes. The caller's tensor is never touched.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

namespace torch_fl {

// Same shape, offset, dtype and keys: `alias` can stand for `impl`.
bool AliasFits(const c10::TensorImpl* impl, const c10::TensorImpl* alias, c10::DispatchKeySet keys);

// A new alias of `impl` over `twin`. It carries a version counter of its own, because kernels without an ADInplaceOrView layer
// above them (foreach) bump the version themselves; the frame adds the difference to the caller's tensor.
at::Tensor BuildAlias(const c10::TensorImpl* impl, c10::intrusive_ptr<c10::StorageImpl> twin, c10::DispatchKeySet keys);

// The version of an alias made by BuildAlias; 0 when nothing wrote to it.
uint32_t AliasVersion(const c10::TensorImpl* alias);

// A target tensor that shares memory with a strided flagos tensor, for reading; any other tensor is returned as it is.
// Without autograd. Needs a device with a target (host view).
at::Tensor TargetAlias(const at::Tensor& tensor);

}  // namespace torch_fl
