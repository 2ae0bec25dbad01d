// SPDX-License-Identifier: Apache-2.0
// For tests only, preloaded: says which accelerator torch takes for its own.
//
// torch knows one accelerator per process, and a registered outside device is always it. Autograd takes the streams of a
// graph's nodes from that accelerator alone, so from torch 2.8 on a backward pass on tensors of another one ends in an
// internal error (opt_ready_stream && opt_parent_stream). A comparison of both in one process turns this switch to the
// native device while the reference runs.
#include <dlfcn.h>

#include <cstdint>
#include <optional>

namespace c10 {
enum class DeviceType : int8_t;
}

extern "C" {
// A c10::DeviceType, or -1 for torch's own answer. Written between calls, never while a backward pass runs.
__attribute__((visibility("default"))) int torch_fl_accelerator = -1;
}

namespace at::accelerator {

__attribute__((visibility("default"))) std::optional<c10::DeviceType> getAccelerator(bool checked) {
  if (torch_fl_accelerator >= 0) return static_cast<c10::DeviceType>(torch_fl_accelerator);
  using Function = std::optional<c10::DeviceType> (*)(bool);
  static const auto next = reinterpret_cast<Function>(
      dlsym(dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD), "_ZN2at11accelerator14getAcceleratorEb"));
  return next(checked);
}

}  // namespace at::accelerator
