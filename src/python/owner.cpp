// SPDX-License-Identifier: Apache-2.0
// Who owns the devices, and tensors across that border.
#include <string>

#include "python/convert.h"
#include "torch/device/native.h"
#include "torch/device/owner.h"

namespace torch_fl::python {

void BindOwner(py::module_& m) {
  Define(m, "_delegate", [] { return Delegated() ? ActiveOwner().Delegate() : std::string(); });
  Define(
      m, "_to_native", [](const at::Tensor& tensor) { return WithoutGil([&] { return ToNative(tensor); }); },
      py::arg("tensor"));
  Define(
      m, "_from_native", [](const at::Tensor& tensor) { return WithoutGil([&] { return FromNative(tensor); }); },
      py::arg("tensor"));
}

}  // namespace torch_fl::python
