// SPDX-License-Identifier: Apache-2.0
// The alias route as a boxed kernel: one function for every operator, of any namespace.
#pragma once

#include <ATen/core/stack.h>

#include <memory>

#include "torch/route/op_record.h"

namespace torch_fl {

// Runs `op` on the target's kernel for `target_key`; arguments on the stack are replaced by results. The route is `alias`, or
// `cpu` (the copying fallback) when forced or when no target can use the device's memory.
// `staged` forces `cpu`.
void RunRouted(OpRecord& op, c10::DispatchKey target_key, torch::jit::Stack* stack, bool staged = false);

// The functor that the dispatcher holds for an operator.
class RoutedKernel final : public c10::OperatorKernel {
 public:
  RoutedKernel(std::shared_ptr<OpRecord> op, c10::DispatchKey target_key)
      : op_(std::move(op)), target_key_(target_key) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (C10_UNLIKELY(op_->stale.load(std::memory_order_relaxed)))
      RunRouted(*RecordOf(op), target_key_, stack);
    else
      RunRouted(*op_, target_key_, stack);
  }

 private:
  std::shared_ptr<OpRecord> op_;
  c10::DispatchKey target_key_;
};

}  // namespace torch_fl
