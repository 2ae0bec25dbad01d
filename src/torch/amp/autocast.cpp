// SPDX-License-Identifier: Apache-2.0
// torch.autocast("flagos"): the operator lists are torch's own, expanded from the installed header, so they follow the
// torch that this library was built for.
#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "torch/register.h"

namespace torch_fl {
namespace {

// In none of the lists: the loss takes a logarithm of values that sigmoid may have rounded to 0 or 1 in low precision.
at::Tensor RefuseBinaryCrossEntropy(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
              "Use torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which take the "
              "values before the sigmoid and are safe, or leave autocast for the loss and give it float32 inputs.");
}

}  // namespace

void RegisterAutocast() {
  constexpr auto kKey = c10::DispatchKey::AutocastPrivateUse1;
  // Leaked: destroying a Library takes its kernels out of the dispatcher.
  auto* every_namespace = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  every_namespace->fallback(torch::CppFunction::makeFallthrough());

  auto& m = *new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  using namespace at;  // the lists name types and operators as torch does inside its own namespace

#define TORCH_FL_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TORCH_FL_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define TORCH_FL_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define TORCH_FL_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(TORCH_FL_LOWER_PRECISION)
  AT_FORALL_FP32(TORCH_FL_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TORCH_FL_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(TORCH_FL_PROMOTE)
#undef TORCH_FL_PROMOTE
#undef TORCH_FL_FP32_SET_OPT_DTYPE
#undef TORCH_FL_FP32
#undef TORCH_FL_LOWER_PRECISION

  m.impl("binary_cross_entropy", TORCH_FN(RefuseBinaryCrossEntropy));
}

}  // namespace torch_fl
