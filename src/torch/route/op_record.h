// SPDX-License-Identifier: Apache-2.0
// What a route must know of an operator, worked out once from its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "router/counters.h"

namespace torch_fl {

enum class ArgKind : uint8_t { kOther, kTensor, kTensorList, kDevice, kStorage, kGenerator };

ArgKind KindOf(const c10::Type& type);

// A result shares memory with an argument that it does not write: a view, which a copy cannot be.
bool ReturnsView(const c10::FunctionSchema& schema);

struct ArgRecord {
  ArgKind kind;
  bool written;   // the schema says the operator writes to it
  bool cpu_free;  // a CPU tensor of any size is welcome beside flagos ones (indices, lengths, copy source)
};

struct OpRecord {
  explicit OpRecord(const c10::OperatorHandle& op);

  c10::OperatorHandle handle;
  std::string name;        // "aten::add.Tensor"
  const char* short_name;  // "add.Tensor" for aten, the whole name elsewhere
  std::vector<ArgRecord> args;
  std::vector<uint8_t> mapped;    // positions of arguments that need mapping, written ones first
  bool cpu_scalars;  // 0-dim CPU tensors are welcome, as TensorIterator operators of a device backend do
  bool has_generator = false;  // one argument is a Generator
  bool draws_silently = false;  // draws random numbers without a generator argument
  bool asks_requires_grad =
      false;  // its backend kernel branches on requires_grad of the inputs, so aliases must carry it
  bool copies = false;  // copy_ and its list form, which cross the border of the device
  bool synchronizes = false;  // hands values to the host, so it waits for its stream on an asynchronous device
  bool stageable = true;  // the copying CPU fallback may run it
  std::atomic<uint64_t> keep_on_cpu{0};  // bit i: return i stays a CPU tensor (torch_fl.keep_on_cpu)
  std::atomic<bool> warned{false};  // the once-per-operator fallback warning was given
  std::atomic<bool> stale{false};  // the operator was deregistered; its name may stand for another schema now
  router::Counter* alias_counter;
  router::Counter* cpu_counter;
};

// The record of an operator, made on first use. Kept while the operator is registered (registry.cpp).
std::shared_ptr<OpRecord> RecordOf(const c10::OperatorHandle& op);

}  // namespace torch_fl
