// SPDX-License-Identifier: Apache-2.0
// Sparse tensors (COO and the four compressed layouts) in a routed call: a sparse alias holds aliases of the members, a sparse
// result is rebuilt from mapped members. A layout that nobody handles raises.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_fl {

class Frame;

at::Tensor MapSparseIn(Frame& frame, const at::Tensor& tensor, bool written);
at::Tensor MapSparseOut(Frame& frame, at::Tensor result);
// After the kernel: `outer` takes the members, sizes and flags that the kernel left in `alias`.
void WriteBackSparse(Frame& frame, const at::Tensor& outer, const at::Tensor& alias);

}  // namespace torch_fl
