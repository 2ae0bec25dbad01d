// SPDX-License-Identifier: Apache-2.0
// Batch norm, CTC loss and grid sampler: cuDNN's operator where native CUDA takes it.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/native/GridSamplerUtils.h>
#include <ATen/native/Normalization.h>
#include <ATen/ops/_batch_norm_impl_index_native.h>
#include <ATen/ops/ctc_loss_native.h>
#include <ATen/ops/grid_sampler_native.h>

#include <tuple>
#include <type_traits>

#include "torch/targets/cuda/composites.h"

namespace torch_fl::cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool IsDense(const Tensor& tensor) {
  return tensor.is_privateuseone() && tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_nested();
}

// -- Batch norm. The number in the result tells a later backward which implementation ran: 0 ATen, 1 cuDNN. --

std::tuple<Tensor, Tensor, Tensor, Tensor, int64_t> BatchNormImplIndex(
    const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias, const OptionalTensor& running_mean,
    const OptionalTensor& running_var, bool training, double momentum, double eps, bool cudnn_enabled) {
  const auto plain = [](const OptionalTensor& tensor) {
    return !tensor.has_value() || !tensor->defined() || IsDense(*tensor);
  };
  const bool ask = IsDense(input) && input.sym_numel() != 0 && plain(weight) && plain(bias) && plain(running_mean) &&
                   plain(running_var) && weight.has_value() && weight->defined();
  if (!ask ||
      at::native::_select_batch_norm_backend(Native(input), Native(weight), Native(bias), Native(running_mean),
                                             Native(running_var), training, eps) != at::native::BatchNormBackend::Cudnn)
    return at::native::_batch_norm_impl_index(input, weight, bias, running_mean, running_var, training, momentum, eps,
                                              cudnn_enabled);
  const auto size_is = [&](const OptionalTensor& tensor, const char* name) {
    if (!tensor.has_value() || !tensor->defined()) return Tensor();
    TORCH_CHECK(tensor->sym_numel() == input.sym_size(1), name, " should contain ", input.sym_size(1), " elements not ",
                tensor->sym_numel());
    return tensor->contiguous();
  };
  auto [output, mean, inverse_deviation, reserve] = at::cudnn_batch_norm(
      input.contiguous(input.suggest_memory_format()), size_is(weight, "weight"), size_is(bias, "bias"),
      size_is(running_mean, "running_mean"), size_is(running_var, "running_var"), training, momentum, eps);
  return {std::move(output), std::move(mean), std::move(inverse_deviation), std::move(reserve), 1};
}

// -- CTC loss --

template <class Lengths>
Tensor Clamped(const Lengths& lengths, const at::TensorOptions& options) {
  if constexpr (std::is_same_v<Lengths, Tensor>) {
    return lengths.clamp_min(1);
  } else {
    return at::tensor(lengths, options).clamp_min(1);
  }
}

template <class Lengths>
Tensor CtcLoss(const Tensor& log_probs, const Tensor& targets, const Lengths& input_lengths,
               const Lengths& target_lengths, int64_t blank, int64_t reduction, bool zero_infinity) {
  const auto composite = [&] {
    return at::native::ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity);
  };
  if (!IsDense(log_probs)) return composite();
  const bool batched = log_probs.dim() == 3;
  const Tensor input = batched ? log_probs : log_probs.unsqueeze(1);
  if (!at::_use_cudnn_ctc_loss(input, targets, input_lengths, target_lengths, blank)) return composite();
  Tensor loss = std::get<0>(at::_cudnn_ctc_loss(input, targets, input_lengths, target_lengths, blank,
                                                /*deterministic=*/true, zero_infinity));
  if (reduction == at::Reduction::Mean) {
    const Tensor lengths = Clamped(target_lengths, loss.options());
    return (loss / lengths).mean();
  }
  if (reduction == at::Reduction::Sum) return loss.sum();
  return batched ? loss : loss.squeeze(0);
}

Tensor CtcLossList(const Tensor& log_probs, const Tensor& targets, at::IntArrayRef input_lengths,
                   at::IntArrayRef target_lengths, int64_t blank, int64_t reduction, bool zero_infinity) {
  return CtcLoss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity);
}

Tensor CtcLossTensor(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                     const Tensor& target_lengths, int64_t blank, int64_t reduction, bool zero_infinity) {
  return CtcLoss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity);
}

// -- Grid sampler --

Tensor GridSampler(const Tensor& input, const Tensor& grid, int64_t interpolation_mode, int64_t padding_mode,
                   bool align_corners) {
  const bool ask = IsDense(input) && IsDense(grid) && align_corners &&
                   static_cast<at::native::GridSamplerInterpolation>(interpolation_mode) ==
                       at::native::GridSamplerInterpolation::Bilinear &&
                   static_cast<at::native::GridSamplerPadding>(padding_mode) == at::native::GridSamplerPadding::Zeros;
  if (ask && input.dim() == 4 && grid.dim() == 4 && at::native::cond_cudnn_grid_sampler(Native(input), Native(grid)))
    return at::cudnn_grid_sampler(input, grid);
  return at::native::grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners);
}

}  // namespace

void RegisterLayers() {
  RegisterComposite("_batch_norm_impl_index", TORCH_FN(BatchNormImplIndex));
  RegisterComposite("ctc_loss.IntList", TORCH_FN(CtcLossList));
  RegisterComposite("ctc_loss.Tensor", TORCH_FN(CtcLossTensor));
  RegisterComposite("grid_sampler", TORCH_FN(GridSampler));
}

}  // namespace torch_fl::cuda
