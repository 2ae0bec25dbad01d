// SPDX-License-Identifier: Apache-2.0
// C++ loops over small operators for overhead.py, below autograd. `flip` stands for the way of running another backend's kernel
// by rewriting the caller's tensors in place (device, key set, storage) and back again; it is written for comparison only.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace {

using at::Tensor;

struct Access : c10::TensorImpl {
  static constexpr auto Keys() { return &Access::key_set_; }
  static constexpr auto Place() { return &Access::device_opt_; }
};

void Rewrite(const Tensor& tensor, c10::DeviceType type) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::Device device(type, impl->device().index());
  const auto from = type == c10::kCUDA ? c10::BackendComponent::PrivateUse1Bit : c10::BackendComponent::CUDABit;
  const auto to = type == c10::kCUDA ? c10::BackendComponent::CUDABit : c10::BackendComponent::PrivateUse1Bit;
  impl->*Access::Keys() = impl->key_set().remove_backend(from) | c10::DispatchKeySet(to);
  impl->*Access::Place() = device;
  tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().unsafe_set_device(device);
}

struct Inputs {
  Tensor x, y, z, b, i, image, kernel;
  std::vector<Tensor> many;
};

Inputs Make(c10::Device device) {
  const auto options = at::TensorOptions(at::kFloat).device(device);
  Inputs in{at::randn({8, 8}, options),
            at::randn({8, 8}, options),
            at::randn({8, 8}, options),
            at::randn({8}, options),
            at::arange(8, options.dtype(at::kLong)),
            at::randn({1, 4, 8, 8}, options),
            at::randn({4, 4, 3, 3}, options),
            {}};
  for (int n = 0; n < 100; ++n) in.many.push_back(at::randn({8}, options));
  return in;
}

struct Case {
  std::function<Tensor(Inputs&)> run;
  std::function<std::vector<Tensor>(Inputs&)> arguments;
};

const std::map<std::string, Case>& Cases() {
  static const std::map<std::string, Case> cases{
      {"add", {[](Inputs& in) { return at::add(in.x, in.y); }, [](Inputs& in) { return std::vector{in.x, in.y}; }}},
      {"mul_scalar", {[](Inputs& in) { return at::mul(in.x, 2.0); }, [](Inputs& in) { return std::vector{in.x}; }}},
      {"relu", {[](Inputs& in) { return at::relu(in.x); }, [](Inputs& in) { return std::vector{in.x}; }}},
      {"gelu", {[](Inputs& in) { return at::gelu(in.x); }, [](Inputs& in) { return std::vector{in.x}; }}},
      {"exp", {[](Inputs& in) { return at::exp(in.x); }, [](Inputs& in) { return std::vector{in.x}; }}},
      {"add_", {[](Inputs& in) { return in.x.add_(in.z, 0.0); }, [](Inputs& in) { return std::vector{in.x, in.z}; }}},
      {"sum", {[](Inputs& in) { return at::sum(in.x); }, [](Inputs& in) { return std::vector{in.x}; }}},
      {"mean_dim", {[](Inputs& in) { return at::mean(in.x, {-1}); }, [](Inputs& in) { return std::vector{in.x}; }}},
      {"softmax",
       {[](Inputs& in) { return at::_softmax(in.x, -1, false); }, [](Inputs& in) { return std::vector{in.x}; }}},
      {"mm", {[](Inputs& in) { return at::mm(in.x, in.y); }, [](Inputs& in) { return std::vector{in.x, in.y}; }}},
      {"addmm",
       {[](Inputs& in) { return at::addmm(in.b, in.x, in.y); },
        [](Inputs& in) { return std::vector{in.b, in.x, in.y}; }}},
      {"cat",
       {[](Inputs& in) { return at::cat({in.x, in.y, in.z, in.x}); },
        [](Inputs& in) { return std::vector{in.x, in.y, in.z}; }}},
      {"gt", {[](Inputs& in) { return at::gt(in.x, 0); }, [](Inputs& in) { return std::vector{in.x}; }}},
      {"native_layer_norm",
       {[](Inputs& in) { return std::get<0>(at::native_layer_norm(in.x, {8}, in.b, in.b, 1e-5)); },
        [](Inputs& in) { return std::vector{in.x, in.b}; }}},
      {"index_select",
       {[](Inputs& in) { return at::index_select(in.x, 0, in.i); },
        [](Inputs& in) { return std::vector{in.x, in.i}; }}},
      {"tanh", {[](Inputs& in) { return at::tanh(in.x); }, [](Inputs& in) { return std::vector{in.x}; }}},
      {"bmm",
       {[](Inputs& in) { return at::bmm(in.image[0], in.image[0]); }, [](Inputs&) { return std::vector<Tensor>{}; }}},
      {"copy_", {[](Inputs& in) { return in.x.copy_(in.y); }, [](Inputs& in) { return std::vector{in.x, in.y}; }}},
      {"convolution",
       {[](Inputs& in) { return at::convolution(in.image, in.kernel, {}, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1); },
        [](Inputs& in) { return std::vector{in.image, in.kernel}; }}},
      {"foreach_add_100",
       {[](Inputs& in) { return at::_foreach_add(in.many, 1.0)[0]; }, [](Inputs& in) { return in.many; }}},
  };
  return cases;
}

void Wait(c10::Device device) { c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(0); }

double Time(std::string name, c10::Device device, bool flip, int64_t count) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Case& chosen = Cases().at(name);
  const c10::Device place(device.type(), 0);
  Inputs in = Make(place);
  if (name.rfind("foreach", 0) == 0) count = count / 20 + 1;
  const std::vector<Tensor> arguments = flip ? chosen.arguments(in) : std::vector<Tensor>{};
  for (int64_t n = 0; n < 20; ++n) chosen.run(in);
  Wait(place);
  const auto start = std::chrono::steady_clock::now();
  for (int64_t n = 0; n < count; ++n) {
    if (!flip) {
      Tensor result = chosen.run(in);
      continue;
    }
    for (const Tensor& tensor : arguments) Rewrite(tensor, c10::kCUDA);
    Tensor result = chosen.run(in);
    for (const Tensor& tensor : arguments) Rewrite(tensor, c10::kPrivateUse1);
    if (result.is_cuda()) Rewrite(result, c10::kPrivateUse1);
  }
  const auto spent = std::chrono::steady_clock::now() - start;
  Wait(place);
  return std::chrono::duration<double, std::nano>(spent).count() / static_cast<double>(count);
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& [name, chosen] : Cases()) names.push_back(name);
  return names;
}

}  // namespace

TORCH_LIBRARY(fl_bench, m) {
  m.def("names() -> str[]", &Names);
  m.def("time(str name, Device device, bool flip, int count) -> float", &Time);
}
