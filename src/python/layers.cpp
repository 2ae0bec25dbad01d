// SPDX-License-Identifier: Apache-2.0
// Controls of the layers that FLAGOS_DRIVER_LAYERS puts round the driver.
#include "runtime/layers.h"

#include <cstdint>
#include <map>
#include <string>

#include "python/convert.h"

namespace torch_fl::python {
namespace {

flagos_status_t ParseStatus(const std::string& name) {
  std::string known;
  for (int code = FLAGOS_INVALID_VALUE; code <= FLAGOS_UNORDERED; ++code) {
    const auto status = static_cast<flagos_status_t>(code);
    if (StatusName(status) == name) return status;
    known += (known.empty() ? "" : ", ") + StatusName(status);
  }
  throw Error(FLAGOS_INVALID_VALUE, "status '" + name + "' is unknown; known are " + known);
}

py::list LiveObjectList() {
  py::list list;
  for (const runtime::LiveObject& object : WithoutGil([] { return runtime::LiveObjects(); })) {
    py::dict dict;
    dict["kind"] = object.kind;
    dict["handle"] = object.handle;
    dict["size"] = object.size;
    dict["device"] = object.device;
    dict["number"] = object.number;
    list.append(std::move(dict));
  }
  return list;
}

std::map<std::string, uint64_t> ValidateCountMap() {
  const runtime::ValidateCounts counts = WithoutGil([] { return runtime::GetValidateCounts(); });
  return {{"accesses", counts.accesses}, {"unordered", counts.unordered}, {"misuses", counts.misuses}};
}

std::map<std::string, uint64_t> CallCountMap() {
  const auto counts = WithoutGil([] { return runtime::TakeCallCounts(); });
  return {counts.begin(), counts.end()};
}

}  // namespace

void BindLayers(py::module_& m) {
  Define(m, "_known_layers", [] { return WithoutGil([] { return runtime::KnownLayers(); }); });
  Define(
      m, "_arm_fault",
      [](const std::string& entry, uint64_t nth, const std::string& status) {
        WithoutGil([&] { runtime::ArmFault(entry, nth, ParseStatus(status)); });
      },
      py::arg("entry"), py::arg("nth"), py::arg("status"));
  Define(m, "_disarm_faults", [] { WithoutGil([] { runtime::DisarmFaults(); }); });
  Define(m, "_faults_fired", [] { return WithoutGil([] { return runtime::FaultsFired(); }); });
  Define(m, "_take_call_counts", &CallCountMap);
  Define(m, "_live_objects", &LiveObjectList);
  Define(m, "_validate_counts", &ValidateCountMap);
}

}  // namespace torch_fl::python
