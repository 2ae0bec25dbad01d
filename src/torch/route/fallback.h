// SPDX-License-Identifier: Apache-2.0
// Policy of the copying CPU fallback; the copying itself is a staging Frame.
#pragma once

#include <ATen/core/ivalue.h>

#include "torch/route/op_record.h"

namespace torch_fl {

// When operators run on CPU copies of their arguments.
enum class Staging {
  kNever,
  kForced,  // FLAGOS_FORCE_BACKEND=cpu: those that may (OpRecord::stageable)
  kAlways,  // no CPU kernel can see the device's memory
};
Staging StagingMode();

// Whether `op` runs as a staging frame.
inline bool RunsStaged(const OpRecord& op) {
  const Staging mode = StagingMode();
  return C10_UNLIKELY(mode != Staging::kNever) && (op.stageable || mode == Staging::kAlways);
}

// Before a fallback runs: logs it, warns once per operator or raises, as FLAGOS_FALLBACK says. The text names the operator, the
// dtypes and shapes, why it falls back and how to silence it or make it an error.
void AnnounceFallback(OpRecord& op, at::ArrayRef<c10::IValue> arguments);

// The error for an operator without any route on this device.
[[noreturn]] void RaiseNoRoute(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

}  // namespace torch_fl
