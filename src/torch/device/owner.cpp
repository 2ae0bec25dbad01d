// SPDX-License-Identifier: Apache-2.0
#include "torch/device/owner.h"

#include <c10/util/Exception.h>

#include "torch/route/target.h"

namespace torch_fl {

bool g_delegated = false;

namespace {

Owner* g_owner = nullptr;

}  // namespace

void SetOwner(Owner& owner, const Target& target, bool delegated) {
  TORCH_INTERNAL_ASSERT(g_owner == nullptr, "the owner of the flagos devices is chosen once");
  g_owner = &owner;
  g_active_target = target;
  g_delegated = delegated;
}

Owner& ActiveOwner() { return *g_owner; }

}  // namespace torch_fl
