// SPDX-License-Identifier: Apache-2.0
// Target CPU: device memory is visible to the host, so CPU kernels run on it in place.
#include "torch/route/target.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "runtime/runtime.h"
#include "torch/device/allocator.h"
#include "torch/register.h"
#include "torch/route/scope.h"

namespace torch_fl {
namespace {

c10::Allocator* g_inner = nullptr;  // the CPU allocator that was there before

void FreeEither(void* pointer) {
  if (pointer == nullptr || FreeTargetAddress(pointer)) return;
  g_inner->raw_deleter()(pointer);
}

// Serves a routed kernel's allocations from device memory, so that its results can be adopted without a copy; forwards all
// others. Its contexts equal its pointers and its raw deleter takes both kinds, because raw_allocate/raw_deallocate users
// (oneDNN, GELU) carry nothing but the pointer.
class RoutedCpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (C10_LIKELY(t_route.depth == 0) || nbytes == 0) return g_inner->allocate(nbytes);
    return AllocateTargetView(nbytes, static_cast<c10::DeviceIndex>(t_route.device), t_route.op);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &FreeEither; }
  void copy_data(void* dst, const void* src, size_t nbytes) const override { std::memcpy(dst, src, nbytes); }
};

}  // namespace

Target g_active_target{};

const Target& CpuTarget() {
  static constexpr Target target{c10::DeviceType::CPU,           c10::BackendComponent::CPUBit,
                                 c10::DispatchKey::CPU,          c10::DispatchKey::SparseCPU,
                                 c10::DispatchKey::SparseCsrCPU, c10::DispatchKey::AutocastCPU};
  return target;
}

void InstallTargetAllocator() {
  static RoutedCpuAllocator* allocator = [] {
    g_inner = c10::GetCPUAllocator();
    auto* made = new RoutedCpuAllocator;  // never destroyed: CPU tensors outlive static destructors
    c10::SetCPUAllocator(made, /*priority=*/200);
    return made;
  }();
  (void)allocator;
}

void RegisterCpuComposites() {
  RegisterRecurrent();
  RegisterAttention();
}

}  // namespace torch_fl
