// SPDX-License-Identifier: Apache-2.0
// Target CUDA: the CUDA backend of the torch in this process owns the devices. Its kernels, guard and allocator are reached
// through what they registered; nothing of libtorch_cuda is linked.
#include "torch/route/target.h"
#include "torch/targets/cuda/composites.h"

namespace torch_fl {

const Target* FindDelegate(const std::string& name) {
  static constexpr Target target{c10::DeviceType::CUDA,           c10::BackendComponent::CUDABit,
                                 c10::DispatchKey::CUDA,          c10::DispatchKey::SparseCUDA,
                                 c10::DispatchKey::SparseCsrCUDA, c10::DispatchKey::AutocastCUDA};
  return name == "cuda" ? &target : nullptr;
}

void RegisterDelegateComposites() {
  cuda::RegisterAttention();
  cuda::RegisterRecurrent();
  cuda::RegisterLayers();
  cuda::RegisterTransforms();
}

}  // namespace torch_fl
