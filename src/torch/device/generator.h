// SPDX-License-Identifier: Apache-2.0
// Random numbers of a flagos device. A FlagosGenerator is a shell with the flagos device written on it; the numbers
// come from the inner generator of the target key, which is what an aliased kernel is handed. No inner generator is
// shared with the target's own default generator, so a draw on flagos never advances the CPU's numbers and the reverse.
//
// Threads: as for every c10 generator, the caller holds the shell's mutex_ around anything that writes. The shell takes
// the inner generator's mutex_ itself, because aliased kernels lock only that one; order: shell, then inner.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <c10/macros/Export.h>

#include <mutex>
#include <optional>

namespace torch_fl {

class FlagosGenerator final : public c10::GeneratorImpl {
 public:
  // `inner` belongs to this shell alone.
  FlagosGenerator(c10::DeviceIndex device, at::Generator inner);

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;  // throws where the target's generator has no offset (the CPU's)
  uint64_t get_offset() const override;
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  at::Generator& inner() { return inner_; }

 private:
  FlagosGenerator* clone_impl() const override;

  at::Generator inner_;
};

// The inner generator of a flagos generator; throws for a generator of another device.
at::Generator& TargetGenerator(const at::Generator& generator);

// The device's default generator, made on first use with a seed from the system, as torch does. Lives as long as the
// process. -1 means the current device; throws torch_fl::Error outside 0 .. DeviceCount()-1.
C10_EXPORT const at::Generator& DefaultGenerator(int device);

// What torch.Generator(device="flagos") makes: seeded with torch's fixed default seed.
at::Generator NewGenerator(int device);

// For operators that draw from the CPU's default generator without taking one (native_dropout, the CPU's flash
// attention): while it lives, the CPU's default generator holds the numbers of the given device's generator; then the
// CPU gets its own state back and the device keeps the advanced one.
//
// Two such operators never overlap (one process-wide lock, recursive for the same thread). A thread that draws from the
// CPU's default generator at the same time, outside flagos, would draw from the device's sequence: torch offers no hook
// to stop it.
class SwapDefaultGenerator {
 public:
  explicit SwapDefaultGenerator(int device);
  ~SwapDefaultGenerator();
  SwapDefaultGenerator(const SwapDefaultGenerator&) = delete;
  SwapDefaultGenerator& operator=(const SwapDefaultGenerator&) = delete;

 private:
  struct State {  // what set_state writes, without the tensor round it
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
  };
  static State Read(at::CPUGeneratorImpl* generator);
  static void Write(at::CPUGeneratorImpl* generator, const State& state);

  std::unique_lock<std::recursive_mutex> lock_;
  at::CPUGeneratorImpl* cpu_;
  at::CPUGeneratorImpl* inner_;
  State saved_;
};

}  // namespace torch_fl
