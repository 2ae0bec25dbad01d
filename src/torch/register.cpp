// SPDX-License-Identifier: Apache-2.0
#include "torch/register.h"

#include <mutex>

#include "torch/device/owner.h"
#include "torch/device/storage.h"
#include "torch/route/registry.h"
#include "torch/route/target.h"

namespace torch_fl {

void RegisterBackend(const std::string& delegate) {
  static std::once_flag once;
  std::call_once(once, [&] {
    const Target* target = delegate.empty() ? &CpuTarget() : FindDelegate(delegate);
    TORCH_CHECK(target != nullptr, "torch_fl cannot delegate devices to '", delegate, "'");
    SetOwner(delegate.empty() ? DirectOwner() : DelegatedOwner(), *target, !delegate.empty());
    ActiveOwner().Register();
    RegisterStorage();
    RegisterHooks();
    RegisterRoutes();
    // After the routes, which they build on.
    Delegated() ? RegisterDelegateComposites() : RegisterCpuComposites();
    RegisterAutocast();
  });
}

}  // namespace torch_fl
