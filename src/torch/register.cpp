// SPDX-License-Identifier: Apache-2.0
#include "torch/register.h"

#include <mutex>

#include "torch/device/allocator.h"
#include "torch/device/pinned.h"
#include "torch/device/storage.h"
#include "torch/route/registry.h"

namespace torch_fl {

void RegisterBackend() {
  static std::once_flag once;
  std::call_once(once, [] {
    RegisterGuard();
    RegisterAllocator();
    RegisterPinned();
    RegisterStorage();
    RegisterHooks();
    RegisterRoutes();
    // After the routes, which they build on.
    RegisterRecurrent();
    RegisterAttention();
    RegisterAutocast();
  });
}

}  // namespace torch_fl
