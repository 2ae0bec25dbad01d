// SPDX-License-Identifier: Apache-2.0
// Recurrent layers. torch's composites branch on the device in two places that matter here:
//
//  - the LSTM and GRU cells call _thnn_fused_*_cell on every privateuse1 device, and the CPU has no such kernel. They
//    are given here by decomposition; their autograd formulas and the `_thnn_differentiable_*_backward` composites
//    (double backward) are torch's own.
//  - lstm.input takes the CPU's fused oneDNN layers only if the tensors say they are on the CPU. The kernel given here
//    makes the same choice and calls the same function with the flagos tensors; all it calls (mkldnn_rnn_layer, cat,
//    dropout, stack) is routed and differentiable.
//
// The other composites that look at the device reach the CPU's own operators by themselves: batch norm, embedding_bag,
// ctc_loss and grid_sampler ask "is it CUDA?" only. Dropout takes native_dropout on privateuse1, which is routed.
#include <ATen/ATen.h>
#include <ATen/Config.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/RNN.h>
#include <ATen/ops/lstm_native.h>
#include <torch/library.h>

#include <tuple>

#include "torch/register.h"

namespace torch_fl {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool Defined(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

// Each side gets its bias before the two are added, as in the CPU's composite: that way the numbers are the CPU's, bit
// for bit.
Tensor WithBias(const Tensor& gates, const OptionalTensor& bias) {
  return Defined(bias) ? at::add(gates, *bias) : gates;
}

// -- LSTM cell. Gates along dimension 1: input, forget, cell, output. Workspace: the four after their activation. --

std::tuple<Tensor, Tensor, Tensor> FusedLstmCell(const Tensor& input_gates, const Tensor& hidden_gates,
                                                 const Tensor& cx, const OptionalTensor& input_bias,
                                                 const OptionalTensor& hidden_bias) {
  Tensor workspace = at::add(WithBias(hidden_gates, hidden_bias), WithBias(input_gates, input_bias));
  const auto gate = workspace.chunk(4, 1);
  gate[0].sigmoid_();
  gate[1].sigmoid_();
  gate[2].tanh_();
  gate[3].sigmoid_();
  Tensor cy = at::mul(gate[1], cx).add_(at::mul(gate[0], gate[2]));
  Tensor hy = at::tanh(cy).mul_(gate[3]);
  return {std::move(hy), std::move(cy), std::move(workspace)};
}

// Returns the gradients of the gates, of cx, and of the bias (undefined without one).
std::tuple<Tensor, Tensor, Tensor> FusedLstmCellBackward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                                                         const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                         bool has_bias) {
  if (!Defined(grad_hy) && !Defined(grad_cy)) return {};
  const auto gate = workspace.chunk(4, 1);
  const Tensor tanh_cy = at::tanh(cy);
  Tensor grad_output_gate;
  Tensor grad_cell;  // of cy, from both outputs
  if (Defined(grad_hy)) {
    grad_output_gate = at::sigmoid_backward(at::mul(*grad_hy, tanh_cy), gate[3]);
    grad_cell = at::tanh_backward(at::mul(*grad_hy, gate[3]), tanh_cy);
    if (Defined(grad_cy)) grad_cell.add_(*grad_cy);
  } else {
    grad_output_gate = at::zeros_like(gate[3]);
    grad_cell = *grad_cy;
  }
  Tensor grad_gates = at::cat({at::sigmoid_backward(at::mul(grad_cell, gate[2]), gate[0]),
                               at::sigmoid_backward(at::mul(grad_cell, cx), gate[1]),
                               at::tanh_backward(at::mul(grad_cell, gate[0]), gate[2]), grad_output_gate},
                              1);
  Tensor grad_cx = at::mul(grad_cell, gate[1]);
  Tensor grad_bias = has_bias ? at::sum(grad_gates, {0}) : Tensor();
  return {std::move(grad_gates), std::move(grad_cx), std::move(grad_bias)};
}

// -- GRU cell. Gates along dimension 1: reset, update, new. Workspace, five columns of hidden size: reset, update and
// new after their activation, hx, and the hidden part of the new gate. --

std::tuple<Tensor, Tensor> FusedGruCell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                        const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto input = WithBias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = WithBias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = at::add(hidden[0], input[0]).sigmoid_();
  const Tensor update = at::add(hidden[1], input[1]).sigmoid_();
  const Tensor fresh = at::mul(hidden[2], reset).add_(input[2]).tanh_();
  Tensor hy = at::sub(hx, fresh).mul_(update).add_(fresh);
  return {std::move(hy), at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

// Returns the gradients of input_gates, hidden_gates, hx, input_bias and hidden_bias (the last two undefined without
// bias).
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> FusedGruCellBackward(const Tensor& grad_hy, const Tensor& workspace,
                                                                        bool has_bias) {
  const auto part = workspace.chunk(5, 1);
  const Tensor &reset = part[0], &update = part[1], &fresh = part[2], &hx = part[3], &hidden = part[4];
  const Tensor grad_update = at::sigmoid_backward(at::mul(grad_hy, at::sub(hx, fresh)), update);
  const Tensor grad_fresh = at::tanh_backward(at::sub(grad_hy, at::mul(grad_hy, update)), fresh);
  const Tensor grad_reset = at::sigmoid_backward(at::mul(grad_fresh, hidden), reset);
  Tensor grad_input_gates = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  Tensor grad_hidden_gates = at::cat({grad_reset, grad_update, at::mul(grad_fresh, reset)}, 1);
  Tensor grad_hx = at::mul(grad_hy, update);
  Tensor grad_input_bias = has_bias ? at::sum(grad_input_gates, {0}) : Tensor();
  Tensor grad_hidden_bias = has_bias ? at::sum(grad_hidden_gates, {0}) : Tensor();
  return {std::move(grad_input_gates), std::move(grad_hidden_gates), std::move(grad_hx), std::move(grad_input_bias),
          std::move(grad_hidden_bias)};
}

// -- lstm.input --

#if AT_MKLDNN_ENABLED()
// The processor's support, as torch itself sees it; the check is not exported, the operator over it is.
bool OneDnnSupports(const char* op) {
  const auto handle = c10::Dispatcher::singleton().findSchema({op, ""});
  return handle.has_value() && handle->typed<bool()>().call();
}

bool OneDnnTakes(const Tensor& input, at::TensorList hx, at::TensorList params) {
  if (!at::globalContext().userEnabledMkldnn() || input.numel() == 0) return false;
  const auto is_plain = [](const Tensor& tensor) {
    return tensor.layout() == at::kStrided && tensor.is_privateuseone() && !tensor.is_nested() &&
           !tensor.is_quantized();
  };
  if (!is_plain(input) || hx.size() != 2) return false;
  for (const auto& list : {hx, params}) {
    for (const Tensor& tensor : list) {
      if (!is_plain(tensor)) return false;
    }
  }
  if (hx[0].dim() != 3 || hx[1].dim() != 3) return false;    // the composite words the error
  if (hx[0].sym_size(2) != hx[1].sym_size(2)) return false;  // projections
  if (hx[0].unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return false;
  switch (input.scalar_type()) {
    case at::kFloat:
      return true;
    case at::kBFloat16: {
      static const bool supported = OneDnnSupports("mkldnn::_is_mkldnn_bf16_supported");
      return supported;
    }
    case at::kHalf: {
      static const bool supported = OneDnnSupports("mkldnn::_is_mkldnn_fp16_supported");
      return supported && !at::GradMode::is_enabled();
    }
    default:
      return false;
  }
}
#endif

std::tuple<Tensor, Tensor, Tensor> Lstm(const Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
                                        int64_t num_layers, double dropout_p, bool train, bool bidirectional,
                                        bool batch_first) {
#if AT_MKLDNN_ENABLED()
  if (OneDnnTakes(input, hx, params)) {
    std::tuple<Tensor, Tensor, Tensor> result;
    // The CPU's entry of the stub, which itself calls operators only. Not through the stub's call operator: its layout
    // depends on how torch was compiled.
    at::native::lstm_mkldnn_stub_DECLARE_DISPATCH_type::DEFAULT(
        std::get<0>(result), std::get<1>(result), std::get<2>(result), input, hx, params, has_biases, num_layers,
        dropout_p, train, bidirectional, batch_first);
    return result;
  }
#endif
  return at::native::lstm(input, hx, params, has_biases, num_layers, dropout_p, train, bidirectional, batch_first);
}

}  // namespace

void RegisterRecurrent() {
  // Leaked: destroying a Library takes its kernels out of the dispatcher.
  auto* backend = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  backend->impl("_thnn_fused_lstm_cell", TORCH_FN(FusedLstmCell));
  backend->impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(FusedLstmCellBackward));
  backend->impl("_thnn_fused_gru_cell", TORCH_FN(FusedGruCell));
  backend->impl("_thnn_fused_gru_cell_backward", TORCH_FN(FusedGruCellBackward));

  // lstm.input is CompositeImplicitAutograd: a PrivateUse1 kernel alone would cut its gradient off. With the same
  // function on AutogradPrivateUse1 it is what a composite is, and inference mode, which skips that key, takes it too.
  auto* autograd =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  autograd->impl("lstm.input", TORCH_FN(Lstm));
  backend->impl("lstm.input", TORCH_FN(Lstm));
}

}  // namespace torch_fl
