// SPDX-License-Identifier: Apache-2.0
// Helpers of the bindings.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

#include "torch/device/errors.h"

namespace torch_fl::python {

// Runs f without the GIL and turns torch_fl::Error into the c10 error whose Python class torch knows.
template <class F>
auto WithoutGil(F&& f) {
  py::gil_scoped_release release;
  return Translate(std::forward<F>(f));
}

// m.def with torch's translation of C++ errors and warnings into Python ones.
template <class F, class... Extra>
void Define(py::module_& m, const char* name, F&& f, Extra&&... extra) {
  m.def(name, torch::wrap_pybind_function(std::forward<F>(f)), std::forward<Extra>(extra)...);
}

// The groups of python/torch_fl/_C.pyi, which documents every function.
void BindDevices(py::module_& m);
void BindMemory(py::module_& m);
void BindSnapshot(py::module_& m);
void BindLayers(py::module_& m);
void BindOwner(py::module_& m);
void BindRouting(py::module_& m);

}  // namespace torch_fl::python
