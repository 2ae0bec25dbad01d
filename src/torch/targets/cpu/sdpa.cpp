// SPDX-License-Identifier: Apache-2.0
// scaled_dot_product_attention is a composite: it asks a per-device stub which kernel to take, and without a stub it
// takes the mathematical formula. Here the stub gives the CPU's own answer. For "flash" the composite calls
// _scaled_dot_product_flash_attention_for_cpu on every device but CUDA; that operator is routed, with its backward.
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>

#include "runtime/runtime.h"
#include "torch/register.h"
#include "torch/route/alias.h"

namespace torch_fl {
namespace {

// The CPU's choice reads sizes, strides, dtypes, the mask's requires_grad and the user's switches, never data, so the
// flagos tensors can be shown to it as they are. The exception: a mask whose last stride is not 1 suits the CPU's
// kernel only, and "is it the CPU?" is asked of the query.
int64_t ChooseAttention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                        std::optional<double> scale, bool enable_gqa) {
  const bool strided_mask = mask.has_value() && mask->defined() && mask->dim() > 0 && mask->sym_stride(-1) != 1;
  const bool show_cpu = strided_mask && !query.is_nested() && runtime::HostView();
  return at::native::_fused_sdp_choice_cpp(show_cpu ? TargetAlias(query) : query, key, value, mask, dropout_p,
                                           is_causal, scale, enable_gqa);
}

}  // namespace

void RegisterAttention() {
  // What REGISTER_PRIVATEUSE1_DISPATCH does, but not in a static initialiser.
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&ChooseAttention);
}

}  // namespace torch_fl
