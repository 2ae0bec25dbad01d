// SPDX-License-Identifier: Apache-2.0
// Fourier transforms of half precision: torch's composites refuse real half tensors of every device but CUDA before any kernel is
// reached. Transforms that begin by making their input complex get it made complex here, which the composites let pass. Those that
// begin with a real-to-complex transform do that step here, on the operator that CUDA's composite calls.
#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "torch/targets/cuda/composites.h"

namespace torch_fl::cuda {
namespace {

using at::Tensor;
using torch::jit::Stack;

enum Norm : int64_t { kNone = 0, kByRoot = 1, kByCount = 2 };  // what _fft_r2c and _fft_c2c take
enum Kind { kMadeComplex, kRealOneDim, kRealManyDims };

struct Transform {
  const char* name;
  Kind kind;
  bool forward = true;
  bool onesided = true;
};
constexpr Transform kTransforms[] = {
    {"fft_irfft", kMadeComplex},
    {"fft_hfft", kMadeComplex},
    {"fft_fft2", kMadeComplex},
    {"fft_ifft2", kMadeComplex},
    {"fft_irfft2", kMadeComplex},
    {"fft_hfft2", kMadeComplex},
    {"fft_fftn", kMadeComplex},
    {"fft_ifftn", kMadeComplex},
    {"fft_irfftn", kMadeComplex},
    {"fft_hfftn", kMadeComplex},
    {"fft_fft", kRealOneDim, true, false},
    {"fft_ifft", kRealOneDim, false, false},
    {"fft_rfft", kRealOneDim, true, true},
    {"fft_ihfft", kRealOneDim, false, true},
    {"fft_rfft2", kRealManyDims, true},
    {"fft_rfftn", kRealManyDims, true},
    {"fft_ihfft2", kRealManyDims, false},
    {"fft_ihfftn", kRealManyDims, false},
};

bool IsRealHalf(const Tensor& tensor) { return tensor.is_privateuseone() && tensor.scalar_type() == at::kHalf; }

int64_t NormOf(const c10::IValue& value, bool forward) {
  const std::string word = value.isNone() ? "backward" : value.toStringRef();
  if (word == "ortho") return kByRoot;
  TORCH_CHECK(word == "backward" || word == "forward", "Invalid normalization mode: \"", word, "\"");
  return (word == "forward") == forward ? kByCount : kNone;
}

// Cut or padded with zeros at the end of each dimension.
Tensor Resized(Tensor tensor, at::IntArrayRef dims, at::IntArrayRef sizes) {
  std::vector<int64_t> padding(static_cast<size_t>(tensor.dim()) * 2, 0);
  bool padded = false;
  for (size_t i = 0; i < dims.size(); ++i) {
    TORCH_CHECK(sizes[i] > 0, "Invalid number of data points (", sizes[i], ") specified");
    const int64_t missing = sizes[i] - tensor.size(dims[i]);
    if (missing < 0) tensor = tensor.slice(dims[i], 0, sizes[i]);
    if (missing <= 0) continue;
    padding[padding.size() - 1 - 2 * static_cast<size_t>(dims[i])] = missing;
    padded = true;
  }
  return padded ? at::constant_pad_nd(tensor, padding) : tensor;
}

// (input, n, dim, norm)
Tensor RealOneDim(const Transform& transform, const Tensor& input, at::ArrayRef<c10::IValue> arguments, Tensor out) {
  const int64_t dim = at::maybe_wrap_dim(arguments[2].toInt(), input.dim(), /*wrap_scalar=*/false);
  const int64_t size = arguments[1].isNone() ? input.size(dim) : arguments[1].toInt();
  TORCH_CHECK(size >= 1, "Invalid number of data points (", size, ") specified");
  const Tensor ready = Resized(input, {dim}, {size});
  const int64_t norm = NormOf(arguments[3], transform.forward);
  if (transform.forward && out.defined()) return at::_fft_r2c_out(out, ready, {dim}, norm, transform.onesided);
  const Tensor result = at::_fft_r2c(ready, {dim}, norm, transform.onesided);
  if (transform.forward) return result;
  return out.defined() ? at::conj_physical_out(out, result) : result.conj();
}

// (input, s, dim, norm); `dim` None: all, or as many of the last as `s` has.
Tensor RealManyDims(const Transform& transform, const Tensor& input, at::ArrayRef<c10::IValue> arguments, Tensor out) {
  std::vector<int64_t> sizes, dims;
  if (!arguments[1].isNone()) sizes = arguments[1].toIntVector();
  if (!arguments[2].isNone()) {
    dims = arguments[2].toIntVector();
    at::maybe_wrap_dims(dims, input.dim(), /*wrap_scalars=*/false);
    std::vector<int64_t> sorted = dims;
    std::sort(sorted.begin(), sorted.end());
    TORCH_CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), "FFT dims must be unique");
    TORCH_CHECK(arguments[1].isNone() || sizes.size() == dims.size(),
                "When given, dim and shape arguments must have the same length");
  } else {
    TORCH_CHECK(static_cast<int64_t>(sizes.size()) <= input.dim(), "Got shape with ", sizes.size(),
                " values but input tensor only has ", input.dim(), " dimensions.");
    dims.resize(arguments[1].isNone() ? static_cast<size_t>(input.dim()) : sizes.size());
    std::iota(dims.begin(), dims.end(), input.dim() - static_cast<int64_t>(dims.size()));
  }
  TORCH_CHECK(!dims.empty(), transform.name + 4, " must transform at least one axis");
  sizes.resize(dims.size(), -1);
  for (size_t i = 0; i < dims.size(); ++i)
    if (sizes[i] == -1) sizes[i] = input.size(dims[i]);
  const Tensor ready = Resized(input, dims, sizes);
  const int64_t norm = NormOf(arguments[3], transform.forward);
  if (transform.forward) {
    return out.defined() ? at::_fft_r2c_out(out, ready, dims, norm, /*onesided=*/true)
                         : at::_fft_r2c(ready, dims, norm, /*onesided=*/true);
  }
  // The inverse of a Hermitian transform: the last dimension from real, conjugated, the others back.
  const Tensor last = at::_fft_r2c(ready, {dims.back()}, norm, /*onesided=*/true);
  if (dims.size() == 1) return out.defined() ? at::conj_physical_out(out, last) : last.conj();
  const Tensor turned = at::conj_physical(last);
  const auto others = at::IntArrayRef(dims).slice(0, dims.size() - 1);
  return out.defined() ? at::_fft_c2c_out(out, turned, others, norm, /*forward=*/false)
                       : at::_fft_c2c(turned, others, norm, /*forward=*/false);
}

// The CPU's entry of a composite-implicit operator is the composite itself; what it calls dispatches by its tensors.
void RunComposite(const c10::OperatorHandle& op, Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

class Kernel final : public c10::OperatorKernel {
 public:
  explicit Kernel(const Transform& transform, bool out) : transform_(transform), out_(out) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) const {
    const size_t base = stack->size() - op.schema().arguments().size();
    const Tensor input = (*stack)[base].toTensor();
    if (!IsRealHalf(input)) return RunComposite(op, stack);
    if (transform_.kind == kMadeComplex) {
      (*stack)[base] = input.to(at::kComplexHalf);
      return RunComposite(op, stack);
    }
    const at::ArrayRef<c10::IValue> arguments(stack->data() + base, 4);
    const Tensor out = out_ ? stack->back().toTensor() : Tensor();
    Tensor result = transform_.kind == kRealOneDim ? RealOneDim(transform_, input, arguments, out)
                                                   : RealManyDims(transform_, input, arguments, out);
    stack->resize(base);
    stack->emplace_back(std::move(result));
  }

 private:
  Transform transform_;
  bool out_;
};

}  // namespace

void RegisterTransforms() {
  for (const auto key : {c10::DispatchKey::AutogradPrivateUse1, c10::DispatchKey::PrivateUse1}) {
    auto* library =
        new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);  // leaked, as all of them
    for (const Transform& transform : kTransforms) {
      for (const bool out : {false, true}) {
        const std::string name = std::string(transform.name) + (out ? ".out" : "");
        library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(transform, out)));
      }
    }
  }
}

}  // namespace torch_fl::cuda
