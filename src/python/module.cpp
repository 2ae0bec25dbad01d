// SPDX-License-Identifier: Apache-2.0
#include "python/convert.h"
#include "torch/register.h"

namespace torch_fl::python {

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  Define(
      m, "_register", [](const std::string& delegate) { Translate([&] { RegisterBackend(delegate); }); },
      py::arg("delegate") = "");
  Define(m, "_torch_version_built", [] { return std::string(TORCH_FL_TORCH_VERSION); });
  BindDevices(m);
  BindMemory(m);
  BindSnapshot(m);
  BindLayers(m);
  BindOwner(m);
  BindRouting(m);
}

}  // namespace torch_fl::python
