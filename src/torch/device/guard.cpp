// SPDX-License-Identifier: Apache-2.0
// Device, stream and event switching for PrivateUse1, forwarded to the runtime. torch.Stream, torch.Event, the autograd
// engine and torch.accelerator need nothing else.
//
// Threads: any; the guard has no state of its own.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "runtime/runtime.h"
#include "torch/device/errors.h"
#include "torch/device/stream.h"
#include "torch/register.h"
#include "torch/version.h"

namespace torch_fl {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

c10::Device MakeDevice(int index) { return c10::Device(kType, static_cast<c10::DeviceIndex>(index)); }

void CheckType(c10::Device device) {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(device.type() == kType, "the flagos guard was asked about ", device);
  (void)device;
}

runtime::Event* AsEvent(void* event) { return static_cast<runtime::Event*>(event); }

class FlagosGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }

  c10::Device exchangeDevice(c10::Device device) const override {
    CheckType(device);
    return MakeDevice(Translate([&] { return runtime::ExchangeDevice(device.index()); }));
  }

  c10::Device getDevice() const override { return MakeDevice(runtime::CurrentDevice()); }

  void setDevice(c10::Device device) const override {
    CheckType(device);
    if (device.has_index()) Translate([&] { runtime::SetDevice(device.index()); });
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    Swallow([&] { return runtime::ExchangeDevice(device.index()); }, -1);
  }

  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(runtime::DeviceCount());
  }

#if TORCH_FL_HAS_DEVICE_CAPABILITY
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    // Data types are a matter of the operators' routes, and a route for every type that torch knows exists.
    Translate([&] { runtime::CheckDevice(ResolveDevice(device.index()), "get_device_capability"); });
    return c10::DeviceCapability();
  }
#endif

  // -- Streams --

  c10::Stream getStream(c10::Device device) const override {
    CheckType(device);
    return Translate([&] { return ToTorchStream(runtime::CurrentStream(ResolveDevice(device.index()))); });
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return Translate([&] { return ToTorchStream(runtime::DefaultStream(ResolveDevice(device.index()))); });
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? -1 : 0);
  }

  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return Translate([&] { return ToTorchStream(runtime::StreamFromPool(ResolveDevice(device.index()), priority)); });
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    return Translate([&] { return ToTorchStream(runtime::ExchangeCurrentStream(FromTorchStream(stream))); });
  }

  bool queryStream(const c10::Stream& stream) const override {
    return Translate([&] { return runtime::QueryStream(FromTorchStream(stream)); });
  }

  void synchronizeStream(const c10::Stream& stream) const override {
    Translate([&] { runtime::SynchronizeStream(FromTorchStream(stream)); });
  }

  void synchronizeDevice(const c10::DeviceIndex index) const override {
    Translate([&] { runtime::SynchronizeDevice(ResolveDevice(index)); });
  }

#if TORCH_FL_TORCH_AT_LEAST(2, 11)
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return Translate([&] { return runtime::StreamNative(FromTorchStream(stream)); });
  }
#endif

#if TORCH_FL_TORCH_AT_LEAST(2, 12)
  // The driver interface has no graph capture yet.
  bool isStreamCapturing(const c10::Stream&) const override { return false; }
#endif

  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    Translate([&] { c10::getDeviceAllocator(kType)->recordStream(pointer, stream); });
  }

  // -- Events: made by the first record, on the stream's device --

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "Event device index ", index,
                " does not match recording stream's device index ", stream.device_index(), ".");
    Translate([&] {
      const bool timing = flag == c10::EventFlag::BACKEND_DEFAULT;  // torch.Event(enable_timing=True)
      if (*event == nullptr) *event = runtime::CreateEvent(stream.device_index(), timing, /*blocking=*/false);
      runtime::RecordEvent(AsEvent(*event), FromTorchStream(stream));
    });
  }

  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) Translate([&] { runtime::StreamWaitEvent(FromTorchStream(stream), AsEvent(event)); });
  }

  bool queryEvent(void* event) const override {
    return event == nullptr || Translate([&] { return runtime::QueryEvent(AsEvent(event)); });
  }

  void synchronizeEvent(void* event) const override {
    if (event != nullptr) Translate([&] { runtime::SynchronizeEvent(AsEvent(event)); });
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) runtime::DestroyEvent(AsEvent(event));
  }

  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
    return Translate([&] { return runtime::ElapsedMs(AsEvent(start), AsEvent(end)); });
  }
};

}  // namespace

void RegisterGuard() {
  // Leaked: torch keeps the pointer until the process ends.
  c10::impl::registerDeviceGuard(kType, new FlagosGuard());
}

}  // namespace torch_fl
