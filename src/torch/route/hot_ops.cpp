// SPDX-License-Identifier: Apache-2.0
// The overloads that get an unboxed route. Only operators whose results are always fresh (or self, never resized) belong here.
#include <ATen/Operators.h>
#include <torch/library.h>

#include <vector>

#include "torch/aten/copy.h"
#include "torch/route/hot.h"
#include "torch/route/registry.h"

namespace torch_fl {
namespace {

// What the device's copy engine should do does not run as a kernel.
at::Tensor& CopyOnDevice(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (C10_UNLIKELY(MayCopyDirectly(self, source, non_blocking)) && CopyDirectly(self, source, non_blocking))
    return self;
  return hot::Kernel<at::_ops::copy_>::Run(self, source, non_blocking);
}

}  // namespace

// clang-format off
#define TORCH_FL_HOT_OPS(X) \
  X(add_Tensor) X(sub_Tensor) X(mul_Tensor) X(div_Tensor) X(add_Scalar) X(mul_Scalar) X(rsub_Scalar) \
  X(maximum) X(minimum) X(pow_Tensor_Scalar) X(where_self) X(masked_fill_Scalar) X(clamp) X(clamp_min) \
  X(eq_Tensor) X(eq_Scalar) X(ne_Tensor) X(ne_Scalar) X(lt_Tensor) X(lt_Scalar) X(gt_Tensor) X(gt_Scalar) X(le_Tensor) X(ge_Tensor) \
  X(logical_not) X(bitwise_not) X(bitwise_and_Tensor) X(bitwise_or_Tensor) \
  X(neg) X(abs) X(exp) X(log) X(sqrt) X(rsqrt) X(reciprocal) X(sin) X(cos) X(tanh) X(sigmoid) X(relu) X(gelu) X(silu) X(erf) \
  X(threshold_backward) X(gelu_backward) X(silu_backward) X(tanh_backward) X(sigmoid_backward) \
  X(sum) X(sum_dim_IntList) X(mean) X(mean_dim) X(amax) X(argmax) X(any) X(all) X(max_dim) \
  X(mm) X(bmm) X(addmm) X(baddbmm) X(cat) X(tril) X(triu) X(cumsum) \
  X(_softmax) X(_log_softmax) X(_softmax_backward_data) X(_log_softmax_backward_data) \
  X(native_layer_norm) X(native_layer_norm_backward) X(native_batch_norm) X(native_batch_norm_backward) X(native_group_norm) \
  X(index_select) X(gather) X(embedding_dense_backward) X(nll_loss_forward) X(nll_loss_backward) X(mse_loss) \
  X(max_pool2d_with_indices) X(max_pool2d_with_indices_backward) X(_adaptive_avg_pool2d) X(_adaptive_avg_pool2d_backward) \
  X(convolution) X(convolution_backward) \
  X(_scaled_dot_product_flash_attention_for_cpu_backward) \
  X(add__Tensor) X(sub__Tensor) X(mul__Tensor) X(div__Tensor) X(add__Scalar) X(mul__Scalar) X(relu_) X(zero_) X(fill__Scalar) \
  X(sqrt_) X(addcmul_) X(addcdiv_) X(lerp__Scalar) X(clamp_) \
  X(_fused_rms_norm) \
  X(_foreach_add_Scalar) X(_foreach_add_List) X(_foreach_sub_List) X(_foreach_mul_Scalar) X(_foreach_mul_List) X(_foreach_div_List) \
  X(_foreach_sqrt) X(_foreach_neg) X(_foreach_abs) X(_foreach_norm_Scalar) X(_foreach_pow_ScalarAndTensor) \
  X(_foreach_add__Scalar) X(_foreach_add__List) X(_foreach_sub__Scalar) X(_foreach_mul__Scalar) X(_foreach_mul__List) \
  X(_foreach_mul__Tensor) X(_foreach_div__Scalar) X(_foreach_div__List) X(_foreach_div__ScalarList) X(_foreach_sqrt_) X(_foreach_neg_) \
  X(_foreach_reciprocal_) X(_foreach_lerp__Scalar) X(_foreach_addcmul__Scalar) X(_foreach_addcdiv__Scalar) \
  X(_foreach_addcdiv__ScalarList) X(_foreach_maximum__List) X(_foreach_zero_) \
  X(_fused_adam_) X(_fused_adamw_) X(_fused_sgd_)
// clang-format on

void RegisterHotOps() {
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
#define TORCH_FL_REGISTER_HOT(name) \
  if (auto handle = hot::Register<at::_ops::name>()) handles->push_back(std::move(*handle));
  TORCH_FL_HOT_OPS(TORCH_FL_REGISTER_HOT)
#undef TORCH_FL_REGISTER_HOT
  if (auto handle = hot::Register<at::_ops::copy_, &CopyOnDevice>()) handles->push_back(std::move(*handle));
}

}  // namespace torch_fl
