// SPDX-License-Identifier: Apache-2.0
#include "torch/device/generator.h"

#include <c10/core/GeneratorImpl.h>

#include <deque>
#include <utility>

#include "torch/device/owner.h"

namespace torch_fl {
namespace {

using Lock = std::lock_guard<std::mutex>;

std::recursive_mutex& SwapMutex() {
  static auto* mutex = new std::recursive_mutex;  // leaked: worker threads may outlive static destruction
  return *mutex;
}

}  // namespace

FlagosGenerator::FlagosGenerator(c10::DeviceIndex device, at::Generator inner)
    : GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, device),
                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      inner_(std::move(inner)) {}

void FlagosGenerator::set_current_seed(uint64_t seed) {
  Lock lock(inner_.mutex());
  inner_.set_current_seed(seed);
}

uint64_t FlagosGenerator::current_seed() const { return inner_.current_seed(); }

uint64_t FlagosGenerator::seed() {
  Lock lock(inner_.mutex());
  return inner_.seed();
}

void FlagosGenerator::set_offset(uint64_t offset) {
  Lock lock(inner_.mutex());
  inner_.set_offset(offset);
}

uint64_t FlagosGenerator::get_offset() const { return inner_.get_offset(); }

void FlagosGenerator::set_state(const c10::TensorImpl& new_state) {
  Lock lock(inner_.mutex());
  inner_.unsafeGetGeneratorImpl()->set_state(new_state);
}

c10::intrusive_ptr<c10::TensorImpl> FlagosGenerator::get_state() const {
  Lock lock(inner_.unsafeGetGeneratorImpl()->mutex_);
  return inner_.unsafeGetGeneratorImpl()->get_state();
}

FlagosGenerator* FlagosGenerator::clone_impl() const {
  Lock lock(inner_.unsafeGetGeneratorImpl()->mutex_);
  return new FlagosGenerator(device_.index(), inner_.clone());
}

at::Generator& TargetGenerator(const at::Generator& generator) {
  TORCH_CHECK(generator.defined() && generator.device().type() == c10::DeviceType::PrivateUse1, "Expected a '",
              c10::DeviceType::PrivateUse1, "' device type for generator but found '",
              generator.defined() ? c10::DeviceTypeName(generator.device().type(), /*lower_case=*/true) : "undefined",
              "'");
  return generator.get<FlagosGenerator>()->inner();
}

const at::Generator& DefaultGenerator(int device) {
  device = ResolveDevice(device);
  ActiveOwner().CheckDevice(device, "default_generator");
  static auto* mutex = new std::mutex;
  static auto* generators = new std::deque<at::Generator>;  // a deque: growing moves no element
  Lock lock(*mutex);
  while (generators->size() <= static_cast<size_t>(device)) generators->emplace_back();
  at::Generator& generator = (*generators)[device];
  if (!generator.defined()) {
    generator =
        at::make_generator<FlagosGenerator>(static_cast<c10::DeviceIndex>(device), ActiveOwner().DefaultInner(device));
  }
  return generator;
}

at::Generator NewGenerator(int device) {
  device = ResolveDevice(device);
  ActiveOwner().CheckDevice(device, "Generator");
  return at::make_generator<FlagosGenerator>(static_cast<c10::DeviceIndex>(device), ActiveOwner().NewInner(device));
}

SwapDefaultGenerator::State SwapDefaultGenerator::Read(at::CPUGeneratorImpl* generator) {
  Lock lock(generator->mutex_);
  return {generator->engine(), generator->next_float_normal_sample(), generator->next_double_normal_sample()};
}

void SwapDefaultGenerator::Write(at::CPUGeneratorImpl* generator, const State& state) {
  Lock lock(generator->mutex_);
  generator->set_engine(state.engine);
  generator->set_next_float_normal_sample(state.next_float);
  generator->set_next_double_normal_sample(state.next_double);
}

SwapDefaultGenerator::SwapDefaultGenerator(int device)
    : lock_(SwapMutex()),
      cpu_(at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>()),
      inner_(TargetGenerator(DefaultGenerator(device)).get<at::CPUGeneratorImpl>()),
      saved_(Read(cpu_)) {
  Write(cpu_, Read(inner_));
}

SwapDefaultGenerator::~SwapDefaultGenerator() {
  Write(inner_, Read(cpu_));
  Write(cpu_, saved_);
}

}  // namespace torch_fl
