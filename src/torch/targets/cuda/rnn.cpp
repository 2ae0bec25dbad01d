// SPDX-License-Identifier: Apache-2.0
// Recurrent layers: with a CUDA tensor torch's composites call cuDNN's fused layers through stubs that insist on CUDA tensors.
// Here the operator under those stubs, _cudnn_rnn, is called with the flagos tensors; it is routed and has torch's gradient.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/cudnn_is_acceptable_native.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "torch/device/generator.h"
#include "torch/device/storage.h"
#include "torch/route/target.h"
#include "torch/route/tensor_access.h"
#include "torch/targets/cuda/composites.h"

namespace torch_fl::cuda {
namespace {

using at::Tensor;

enum Mode : int64_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };  // cudnnRNNMode_t

bool CudnnTakes(const Tensor& input) {
  if (!input.defined() || !input.is_privateuseone() || input.layout() != at::kStrided || !input.has_storage())
    return false;
  switch (input.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
      break;
    case at::kBFloat16:
      if (!at::detail::getCUDAHooks().supportsBFloat16RNNWithCuDNN()) return false;
      break;
    default:
      return false;
  }
  return at::native::cudnn_is_acceptable(Native(input));
}

struct Shape {
  bool has_biases, bidirectional;
  int64_t mode, hidden_size, proj_size, num_layers;
  int64_t per_layer() const { return (has_biases ? 4 : 2) + (proj_size != 0 ? 1 : 0); }
};

// -- The flat weight buffer. cuDNN wants all weights in one buffer in an order of its own; a module's flatten_parameters puts
// them there. Whether it did is a question of addresses. --

// Byte offsets of the weights in cuDNN's buffer.
struct Layout {
  int64_t bytes = 0;  // in all
  std::vector<int64_t> offsets;
};

Layout AskLayout(const Shape& shape, at::TensorList params, int64_t input_size, at::ScalarType dtype) {
  const c10::Device device(ActiveTarget().type, params[0].device().index());
  std::vector<Tensor> blank;
  blank.reserve(params.size());
  for (const Tensor& param : params) blank.push_back(at::empty(param.sizes(), at::TensorOptions(dtype).device(device)));
  const Tensor buffer =
      at::_cudnn_rnn_flatten_weight(blank, shape.per_layer(), input_size, shape.mode, shape.hidden_size,
                                    shape.proj_size, shape.num_layers, /*batch_first=*/false, shape.bidirectional);
  const auto* base = static_cast<const char*>(buffer.const_data_ptr());
  std::vector<int64_t> offsets;
  offsets.reserve(blank.size());
  for (const Tensor& weight : blank) offsets.push_back(static_cast<const char*>(weight.const_data_ptr()) - base);
  return {static_cast<int64_t>(buffer.nbytes()), std::move(offsets)};
}

// Asked of cuDNN once for each set of what it depends on. The table is leaked.
Layout LayoutOf(const Shape& shape, at::TensorList params, int64_t input_size, at::ScalarType dtype) {
  using Key = std::tuple<int, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool>;
  static auto* mutex = new std::mutex;
  static auto* known = new std::map<Key, Layout>;
  const Key key{static_cast<int>(dtype), input_size,       shape.mode,       shape.hidden_size,
                shape.proj_size,         shape.num_layers, shape.has_biases, shape.bidirectional};
  {
    const std::lock_guard lock(*mutex);
    if (auto found = known->find(key); found != known->end()) return found->second;
  }
  const at::NoGradGuard no_grad;
  Layout layout = AskLayout(shape, params, input_size, dtype);
  const std::lock_guard lock(*mutex);
  return known->insert_or_assign(key, std::move(layout)).first->second;
}

// The buffer that holds the weights if they lie as cuDNN wants them, else undefined: then cuDNN copies them at each call.
Tensor FlatBuffer(const Shape& shape, at::TensorList params, int64_t input_size) {
  const Tensor& first = params[0];
  const c10::Storage& storage = first.storage();
  for (const Tensor& param : params)
    if (!param.is_privateuseone() || !param.storage().is_alias_of(storage) || !param.is_contiguous() ||
        param.scalar_type() != first.scalar_type())
      return {};
  const Layout layout = LayoutOf(shape, params, input_size, first.scalar_type());
  if (layout.offsets.size() != params.size() || static_cast<int64_t>(storage.nbytes()) < layout.bytes) return {};
  const auto* base = static_cast<const char*>(storage.data());
  for (size_t i = 0; i < params.size(); ++i)
    if (static_cast<const char*>(params[i].const_data_ptr()) - base != layout.offsets[i]) return {};
  const auto count = layout.bytes / static_cast<int64_t>(first.element_size());
  return at::empty({0}, first.options().requires_grad(false)).set_(storage, 0, {count}, {1});
}

// -- Dropout between the layers draws from a state of its own, seeded from the device's generator when first used and again
// whenever that generator was seeded, as CUDA does. One a device, used by one call at a time. --

class DropoutState {
 public:
  // Holds the state for the call, on the current stream.
  class Use {
   public:
    Use(DropoutState& state, const Tensor& input, double dropout_p, bool train)
        : state_(state), lock_(state.mutex_), stream_(CurrentStream(input.device())), active_(train && dropout_p > 0) {
      if (!active_) return;
      if (state_.event_) state_.event_->block(stream_);
      state_.SeedIfDue(input, dropout_p, train);
      buffer_ = state_.buffer_;
    }
    ~Use() {
      if (!active_) return;
      if (!state_.event_) state_.event_.emplace(c10::DeviceType::PrivateUse1);
      state_.event_->record(stream_);
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    const Tensor& buffer() const { return buffer_; }

   private:
    static c10::Stream CurrentStream(c10::Device device) {
      return c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1).getStream(device);
    }
    DropoutState& state_;
    std::unique_lock<std::mutex> lock_;
    c10::Stream stream_;
    bool active_;
    Tensor buffer_;
  };

  static DropoutState& Of(c10::DeviceIndex device) {
    // Leaked: they hold device memory. A map: growing moves no element.
    static auto* mutex = new std::mutex;
    static auto* states = new std::map<c10::DeviceIndex, DropoutState>;
    const std::lock_guard lock(*mutex);
    return (*states)[device];
  }

 private:
  void SeedIfDue(const Tensor& input, double dropout_p, bool train) {
    const at::Generator& generator = TargetGenerator(DefaultGenerator(input.device().index()));
    const uint64_t seed = generator.current_seed();
    uint64_t offset = offset_;
    try {
      offset = generator.get_offset();
    } catch (const c10::Error&) {  // not while a graph is captured: nobody seeds then
    }
    // A generator that was seeded starts again at offset 0, behind what was drawn for this state.
    if (!buffer_.defined() || seed != seed_ || offset < offset_) {
      const auto options = input.options().requires_grad(false);
      const int64_t drawn = at::empty({}, options.dtype(at::kLong)).random_().item<int64_t>();
      buffer_ = at::_cudnn_init_dropout_state(dropout_p, train, drawn, options.dtype(at::kByte));
      offset = generator.get_offset();
    }
    seed_ = seed;
    offset_ = offset;
  }

  std::mutex mutex_;
  Tensor buffer_;
  std::optional<c10::Event> event_;  // behind the last use
  uint64_t seed_ = 0, offset_ = 0;
};

struct Result {
  Tensor output, hy, cy;
};

Result CudnnLayers(int64_t mode, const Tensor& input, const Tensor& batch_sizes, const Tensor& hx, const Tensor& cx,
                   at::TensorList params, bool has_biases, int64_t num_layers, double dropout_p, bool train,
                   bool bidirectional, bool batch_first) {
  Shape shape{has_biases, bidirectional, mode, hx.size(2), 0, num_layers};
  if (cx.defined() && cx.size(2) != hx.size(2)) {
    shape.hidden_size = cx.size(2);
    shape.proj_size = hx.size(2);
  }
  std::vector<int64_t> lengths;
  if (batch_sizes.defined()) {
    TORCH_CHECK(batch_sizes.dim() == 1, "batch_sizes tensor should be 1D");
    const auto* first = batch_sizes.const_data_ptr<int64_t>();
    lengths.assign(first, first + batch_sizes.size(0));
  }
  const Tensor weight_buf = FlatBuffer(shape, params, input.size(-1));
  const DropoutState::Use dropout(DropoutState::Of(input.device().index()), input, dropout_p, train);
  const auto optional = [](const Tensor& tensor) {
    return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
  };
  auto results = at::_cudnn_rnn(input, params, shape.per_layer(), optional(weight_buf), hx, optional(cx), mode,
                                shape.hidden_size, shape.proj_size, num_layers, batch_first, dropout_p, train,
                                bidirectional, lengths, optional(dropout.buffer()));
  return {std::move(std::get<0>(results)), std::move(std::get<1>(results)), std::move(std::get<2>(results))};
}

std::tuple<Tensor, Tensor, Tensor> Lstm(const Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
                                        int64_t num_layers, double dropout_p, bool train, bool bidirectional,
                                        bool batch_first) {
  if (hx.size() != 2 || !CudnnTakes(input))
    return at::native::lstm(input, hx, params, has_biases, num_layers, dropout_p, train, bidirectional, batch_first);
  Result r = CudnnLayers(kLstm, input, {}, hx[0], hx[1], params, has_biases, num_layers, dropout_p, train,
                         bidirectional, batch_first);
  return {std::move(r.output), std::move(r.hy), std::move(r.cy)};
}

std::tuple<Tensor, Tensor, Tensor> LstmPacked(const Tensor& data, const Tensor& batch_sizes, at::TensorList hx,
                                              at::TensorList params, bool has_biases, int64_t num_layers,
                                              double dropout_p, bool train, bool bidirectional) {
  if (hx.size() != 2 || !CudnnTakes(data))
    return at::native::lstm(data, batch_sizes, hx, params, has_biases, num_layers, dropout_p, train, bidirectional);
  Result r = CudnnLayers(kLstm, data, batch_sizes, hx[0], hx[1], params, has_biases, num_layers, dropout_p, train,
                         bidirectional, /*batch_first=*/false);
  return {std::move(r.output), std::move(r.hy), std::move(r.cy)};
}

using OneHidden = std::tuple<Tensor, Tensor> (*)(const Tensor&, const Tensor&, at::TensorList, bool, int64_t, double,
                                                 bool, bool, bool);
using OneHiddenPacked = std::tuple<Tensor, Tensor> (*)(const Tensor&, const Tensor&, const Tensor&, at::TensorList,
                                                       bool, int64_t, double, bool, bool);

template <int64_t kMode, OneHidden kComposite>
std::tuple<Tensor, Tensor> Layers(const Tensor& input, const Tensor& hx, at::TensorList params, bool has_biases,
                                  int64_t num_layers, double dropout_p, bool train, bool bidirectional,
                                  bool batch_first) {
  if (!CudnnTakes(input))
    return kComposite(input, hx, params, has_biases, num_layers, dropout_p, train, bidirectional, batch_first);
  Result r = CudnnLayers(kMode, input, {}, hx, {}, params, has_biases, num_layers, dropout_p, train, bidirectional,
                         batch_first);
  return {std::move(r.output), std::move(r.hy)};
}

template <int64_t kMode, OneHiddenPacked kComposite>
std::tuple<Tensor, Tensor> LayersPacked(const Tensor& data, const Tensor& batch_sizes, const Tensor& hx,
                                        at::TensorList params, bool has_biases, int64_t num_layers, double dropout_p,
                                        bool train, bool bidirectional) {
  if (!CudnnTakes(data))
    return kComposite(data, batch_sizes, hx, params, has_biases, num_layers, dropout_p, train, bidirectional);
  Result r = CudnnLayers(kMode, data, batch_sizes, hx, {}, params, has_biases, num_layers, dropout_p, train,
                         bidirectional, /*batch_first=*/false);
  return {std::move(r.output), std::move(r.hy)};
}

// -- Autocast: cuDNN's layers take half precision whatever the autocast dtype, as CUDA's do. Weights that are not half are cast
// into one buffer of cuDNN's layout; the gradient finds its way back through the copies. --

struct FlatWeights {
  Tensor buffer;
  std::vector<Tensor> views;
};

FlatWeights CastIntoBuffer(const Shape& shape, at::TensorList params, int64_t input_size, at::ScalarType dtype) {
  const Layout layout = LayoutOf(shape, params, input_size, dtype);
  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  FlatWeights flat;
  flat.buffer = at::zeros({layout.bytes / item}, params[0].options().dtype(dtype).requires_grad(false));
  flat.views.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    Tensor view = flat.buffer.narrow(0, layout.offsets[i] / item, params[i].numel()).view(params[i].sizes());
    view.copy_(params[i]);
    flat.views.push_back(std::move(view));
  }
  flat.buffer = flat.buffer.detach();
  return flat;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> AutocastRnn(
    const Tensor& input, at::TensorList weight, int64_t weight_stride0, const std::optional<Tensor>& weight_buf,
    const Tensor& hx, const std::optional<Tensor>& cx, int64_t mode, c10::SymInt hidden_size, c10::SymInt proj_size,
    int64_t num_layers, bool batch_first, double dropout, bool train, bool bidirectional,
    c10::SymIntArrayRef batch_sizes, const std::optional<Tensor>& dropout_state) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
  const auto half = [](const Tensor& tensor) {
    return at::autocast::cached_cast(at::kHalf, tensor, c10::DeviceType::PrivateUse1);
  };
  const auto run = [&](at::TensorList weights, const std::optional<Tensor>& buffer) {
    return at::_cudnn_rnn_symint(half(input), weights, weight_stride0, buffer, half(hx),
                                 cx.has_value() ? std::optional<Tensor>(half(*cx)) : cx, mode, hidden_size, proj_size,
                                 num_layers, batch_first, dropout, train, bidirectional, batch_sizes, dropout_state);
  };
  const auto dtype = weight.empty() ? at::kHalf : weight[0].scalar_type();
  if (dtype == at::kHalf || dtype == at::kDouble) return run(weight, weight_buf);
  const Shape shape{weight_stride0 >= 4,
                    bidirectional,
                    mode,
                    hidden_size.guard_int(__FILE__, __LINE__),
                    proj_size.guard_int(__FILE__, __LINE__),
                    num_layers};
  const FlatWeights flat = CastIntoBuffer(shape, weight, input.size(-1), at::kHalf);
  return run(flat.views, flat.buffer);
}

}  // namespace

void RegisterRecurrent() {
  RegisterComposite("lstm.input", TORCH_FN(Lstm));
  RegisterComposite("lstm.data", TORCH_FN(LstmPacked));
  RegisterComposite("gru.input", TORCH_FN((Layers<kGru, static_cast<OneHidden>(&at::native::gru)>)));
  RegisterComposite("gru.data", TORCH_FN((LayersPacked<kGru, static_cast<OneHiddenPacked>(&at::native::gru)>)));
  RegisterComposite("rnn_tanh.input", TORCH_FN((Layers<kTanh, static_cast<OneHidden>(&at::native::rnn_tanh)>)));
  RegisterComposite("rnn_tanh.data",
                    TORCH_FN((LayersPacked<kTanh, static_cast<OneHiddenPacked>(&at::native::rnn_tanh)>)));
  RegisterComposite("rnn_relu.input", TORCH_FN((Layers<kRelu, static_cast<OneHidden>(&at::native::rnn_relu)>)));
  RegisterComposite("rnn_relu.data",
                    TORCH_FN((LayersPacked<kRelu, static_cast<OneHiddenPacked>(&at::native::rnn_relu)>)));
  auto* autocast =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  autocast->impl("_cudnn_rnn", TORCH_FN(AutocastRnn));
}

}  // namespace torch_fl::cuda
