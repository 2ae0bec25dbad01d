// SPDX-License-Identifier: Apache-2.0
// Composites of torch that ask "is it a CUDA tensor?" of a flagos one and would take another kernel than native CUDA takes.
// Each gets a kernel that asks the same question of the aliases and then calls the same operator with the flagos tensors.
//
// A composite-implicit operator may have no kernel for PrivateUse1 alone, because its gradient would vanish: the same function
// is registered for AutogradPrivateUse1, where it is what a composite is, and for PrivateUse1, which inference mode takes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <utility>

#include "torch/route/alias.h"

namespace torch_fl::cuda {

void RegisterAttention();  // scaled_dot_product_attention
void RegisterRecurrent();  // lstm, gru, rnn_tanh, rnn_relu
void RegisterLayers();  // batch norm, CTC loss, grid sampler
void RegisterTransforms();  // torch.fft in half precision

// Registers `kernel` as the composite `name` of ATen. Leaked: destroying a Library takes its kernels out of the dispatcher.
template <class Kernel>
void RegisterComposite(const char* name, Kernel kernel) {
  for (const auto key : {c10::DispatchKey::AutogradPrivateUse1, c10::DispatchKey::PrivateUse1}) {
    auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    library->impl(name, kernel);
  }
}

// What torch sees of an argument natively.
inline at::Tensor Native(const at::Tensor& tensor) { return TargetAlias(tensor); }
inline at::Tensor Native(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? TargetAlias(*tensor) : at::Tensor();
}

}  // namespace torch_fl::cuda
