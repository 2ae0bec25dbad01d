// SPDX-License-Identifier: Apache-2.0
// Which operators take CPU tensors beside device tensors, and torch's own words when they do not.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace torch_fl {

// True when the operator accepts 0-dim CPU tensors on a device backend: native_functions.yaml marks it `device_check: NoCheck`
// (TensorIterator and foreach operators check by themselves and let scalars pass). Operators outside aten: true.
bool AcceptsCpuScalars(const std::string& op);

// True when this argument may be a CPU tensor of any size beside flagos ones.
bool AcceptsCpuTensor(const std::string& op, const std::string& argument);

// Throws torch's standard mixed-device error. `argument` is the schema's name of the offender.
[[noreturn]] void RaiseMixedDevices(const std::string& op, const std::string& argument, const at::Tensor& offender,
                                    c10::Device common, bool iterator_style);

}  // namespace torch_fl
