// SPDX-License-Identifier: Apache-2.0
// scaled_dot_product_attention picks flash, efficient, cuDNN or the formula by asking a per-device stub, and calls the CPU's
// flash kernel on every device but CUDA. Here the stub gives CUDA's answer, and flash is called as for CUDA: with the head
// dimension padded to a multiple of 8 and the scale of the unpadded one.
#include <ATen/ATen.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>

#include "torch/targets/cuda/composites.h"

namespace torch_fl::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kHeadMultiple = 8;

// Set while a call whose choice is known runs torch's composite, which asks for it again.
thread_local std::optional<int64_t> t_choice;

struct Choice {
  explicit Choice(int64_t choice) : saved(t_choice) { t_choice = choice; }
  ~Choice() { t_choice = saved; }
  std::optional<int64_t> saved;
};

// Routed: CUDA's function sees aliases that carry requires_grad (op_record.cpp).
int64_t Choose(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
               double dropout_p, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  if (t_choice) return *t_choice;
  return at::_fused_sdp_choice(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
}

Tensor PadHead(const Tensor& tensor) {
  const c10::SymInt size = tensor.sym_size(-1);
  if (size % kHeadMultiple == 0) return tensor;
  return at::pad_symint(tensor, {c10::SymInt(0), kHeadMultiple - (size % kHeadMultiple)});
}

Tensor Attention(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
                 double dropout_p, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  const auto fits = [&](const Tensor& tensor) { return tensor.dim() >= 2 && tensor.is_privateuseone(); };
  if (!fits(query) || !fits(key) || !fits(value))  // the composite words the error
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
  const int64_t choice = Choose(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
  if (choice != static_cast<int64_t>(sdp::SDPBackend::flash_attention)) {
    const Choice known(choice);
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
  }
  const c10::SymInt head = query.sym_size(-1);
  const double head_scale = sdp::calculate_scale(query, scale).guard_float(__FILE__, __LINE__);
  Tensor output = std::get<0>(at::_scaled_dot_product_flash_attention(PadHead(query), PadHead(key), PadHead(value),
                                                                      dropout_p, is_causal,
                                                                      /*return_debug_mask=*/false, head_scale));
  // Nested tensors are never padded.
  if (!output.is_nested() && head % kHeadMultiple != 0) output = output.slice_symint(-1, 0, head);
  return output;
}

}  // namespace

void RegisterAttention() {
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&Choose);
  RegisterComposite("scaled_dot_product_attention", TORCH_FN(Attention));
}

}  // namespace torch_fl::cuda
