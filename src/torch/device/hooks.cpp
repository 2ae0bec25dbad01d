// SPDX-License-Identifier: Apache-2.0
// What torch's device-independent C++ asks of an accelerator.
//
// Threads: any; no state of its own.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "torch/device/errors.h"
#include "torch/device/generator.h"
#include "torch/device/owner.h"
#include "torch/device/storage.h"
#include "torch/register.h"

namespace torch_fl {
namespace {

class FlagosHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }

  bool isAvailable() const override { return ActiveOwner().DeviceCount() > 0; }

  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return ActiveOwner().HasContext(ResolveDevice(device));
  }

  void init() const override { ActiveOwner().Init(); }

  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(ActiveOwner().DeviceCount()); }

  void setCurrentDevice(c10::DeviceIndex device) const override {
    ActiveOwner().CheckDevice(device, "set_device");
    ActiveOwner().ExchangeDevice(device);
  }

  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(ActiveOwner().CurrentDevice());
  }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(ActiveOwner().ExchangeDevice(device));
  }

  // "Maybe": may skip the switch if that would create a context. Ours never creates one.
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return Translate([&]() -> const at::Generator& { return DefaultGenerator(device); });
  }

  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return Translate([&] { return NewGenerator(device); });
  }

  at::Device getDeviceFromPtr(void* data) const override {
    return at::Device(at::kPrivateUse1, ActiveOwner().DeviceOfPointer(data));
  }

  bool isPinnedPtr(const void* data) const override { return ActiveOwner().IsPinned(data); }

  at::Allocator* getPinnedMemoryAllocator() const override { return ActiveOwner().PinnedAllocator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t new_size) const override {
    Translate([&] { ResizeFlagosStorage(storage, new_size); });
  }
};

}  // namespace

void RegisterHooks() {
  // Leaked: torch keeps the pointer until the process ends.
  at::RegisterPrivateUse1HooksInterface(new FlagosHooks());
}

}  // namespace torch_fl
