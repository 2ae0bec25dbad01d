// SPDX-License-Identifier: Apache-2.0
// Driver, devices, generators and streams.
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/convert.h"
#include "runtime/allocator.h"
#include "runtime/runtime.h"
#include "torch/device/generator.h"
#include "torch/device/owner.h"

namespace torch_fl::python {
namespace {

std::vector<std::string> CapabilityNames(uint64_t bits) {
  static constexpr std::pair<uint64_t, const char*> kNames[] = {
      {FLAGOS_CAP_HOST_VIEW, "host_view"},
      {FLAGOS_CAP_ASYNC, "async"},
      {FLAGOS_CAP_EVENT_TIMING, "event_timing"},
      {FLAGOS_CAP_STREAM_PRIORITY, "stream_priority"},
      {FLAGOS_CAP_UNIFIED_ADDRESS, "unified_address"},
      {FLAGOS_CAP_ACCESS_FAULTS, "access_faults"},
      {FLAGOS_CAP_KERNEL_ORDER, "kernel_order"},
  };
  std::vector<std::string> names;
  for (const auto& [bit, name] : kNames) {
    if ((bits & bit) != 0) names.emplace_back(name);
  }
  return names;
}

// For table entries that the runtime has no function for.
void CheckStatus(flagos_status_t status, const char* entry) {
  if (status == FLAGOS_OK) return;
  throw Error(status,
              std::string(entry) + ": " + StatusName(status) + ": " + runtime::Driver().last_error()->vendor_text);
}

py::dict DriverInfoDict() {
  const runtime::DriverInfo& info = *WithoutGil([] { return &runtime::GetDriverInfo(); });
  py::dict dict;
  dict["name"] = info.name;
  dict["path"] = info.path;
  dict["platform"] = info.platform;
  dict["implementation"] = info.implementation;
  dict["capabilities"] = CapabilityNames(info.capabilities);
  dict["missing_entries"] = info.missing_entries;
  dict["layers"] = info.layers;
  return dict;
}

py::dict DeviceProperties(int device) {
  const flagos_device_info_t info = WithoutGil([&] { return runtime::DeviceInfo(device); });
  const auto known = [&](uint32_t bit, auto value) -> py::object {
    if ((info.valid & bit) == 0) return py::none();
    return py::cast(value);
  };
  py::dict dict;
  dict["name"] = known(FLAGOS_INFO_NAME, std::string(info.name));
  dict["arch"] = known(FLAGOS_INFO_ARCH, std::string(info.arch));
  dict["total_memory"] = known(FLAGOS_INFO_TOTAL_MEMORY, info.total_memory);
  dict["major"] = known(FLAGOS_INFO_CAPABILITY, info.capability_major);
  dict["minor"] = known(FLAGOS_INFO_CAPABILITY, info.capability_minor);
  dict["multi_processor_count"] = known(FLAGOS_INFO_COMPUTE_UNITS, info.compute_units);
  dict["warp_size"] = known(FLAGOS_INFO_WARP_SIZE, info.warp_size);
  dict["pci_bus_id"] = known(FLAGOS_INFO_PCI, std::string(info.pci));
  return dict;
}

bool CanAccessPeer(int device, int peer) {
  return WithoutGil([&] {
    runtime::CheckDevice(device, "can_device_access_peer");
    runtime::CheckDevice(peer, "can_device_access_peer");
    const flagos_driver_v1_t& driver = runtime::Driver();
    if (driver.peer_can_access == nullptr) return false;  // copies between devices go through the host
    int32_t can = 0;
    CheckStatus(driver.peer_can_access(device, peer, &can), "peer_can_access");
    return can != 0;
  });
}

std::pair<int, int> StreamPriorityRange(int device) {
  return WithoutGil([&] {
    runtime::CheckDevice(device, "Stream.priority_range");
    const flagos_driver_v1_t& driver = runtime::Driver();
    int32_t least = 0;
    int32_t greatest = 0;
    if (driver.stream_priority_range != nullptr) {
      CheckStatus(driver.stream_priority_range(device, &least, &greatest), "stream_priority_range");
    }
    return std::pair<int, int>(least, greatest);
  });
}

}  // namespace

void BindDevices(py::module_& m) {
  const py::arg device("device");

  Define(m, "_driver_info", &DriverInfoDict);
  Define(m, "_available_drivers", [] { return WithoutGil([] { return runtime::AvailableDrivers(); }); });
  Define(m, "_driver_folder", [] { return WithoutGil([] { return runtime::DriverFolder(); }); });
  Define(m, "_hardware_detected", [] { return WithoutGil([] { return runtime::HardwareDetected(); }); });

  Define(m, "_device_count", [] { return WithoutGil([] { return ActiveOwner().DeviceCount(); }); });
  Define(m, "_unavailable_reason", [] { return WithoutGil([] { return ActiveOwner().UnavailableReason(); }); });
  Define(m, "_current_device", [] { return ActiveOwner().CurrentDevice(); });
  Define(
      m, "_set_device",
      [](int index) {
        WithoutGil([&] {
          ActiveOwner().CheckDevice(index, "set_device");
          ActiveOwner().ExchangeDevice(index);
        });
      },
      device);
  Define(
      m, "_exchange_device", [](int index) { return WithoutGil([&] { return ActiveOwner().ExchangeDevice(index); }); },
      device);
  Define(m, "_has_context", [](int index) { return ActiveOwner().HasContext(index); }, device);
  Define(m, "_is_in_bad_fork",
         [] { return (runtime::g_attention.load(std::memory_order_relaxed) & runtime::kAttentionForked) != 0; });
  Define(m, "_device_properties", &DeviceProperties, device);
  Define(
      m, "_memory_info",
      [](int index) {
        const auto info = WithoutGil([&] { return ActiveOwner().DeviceMemory(index); });
        return std::make_tuple(info.first, info.second);
      },
      device);
  Define(m, "_synchronize", [](int index) { WithoutGil([&] { ActiveOwner().SynchronizeDevice(index); }); }, device);
  Define(m, "_host_view", [] { return WithoutGil([] { return !Delegated() && ActiveOwner().HasTarget(); }); });

  Define(m, "_can_access_peer", &CanAccessPeer, device, py::arg("peer"));

  Define(
      m, "_default_generator",
      [](int index) { return WithoutGil([&] { return at::Generator(DefaultGenerator(index)); }); }, device);

  Define(
      m, "_stream_native",
      [](int64_t stream_id, int index) {
        return WithoutGil([&] {
          return reinterpret_cast<uintptr_t>(runtime::StreamNative(runtime::StreamFromId(index, stream_id)));
        });
      },
      py::arg("stream_id"), device);
  Define(
      m, "_stream_priority",
      [](int64_t stream_id, int index) {
        return WithoutGil([&] { return runtime::StreamPriority(runtime::StreamFromId(index, stream_id)); });
      },
      py::arg("stream_id"), device);
  Define(m, "_stream_priority_range", &StreamPriorityRange, device);
  Define(
      m, "_external_stream",
      [](uintptr_t native, int index) {
        return WithoutGil(
            [&] { return runtime::StreamId(runtime::ExternalStream(index, reinterpret_cast<void*>(native))); });
      },
      py::arg("native"), device);
}

}  // namespace torch_fl::python
