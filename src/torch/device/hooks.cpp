// SPDX-License-Identifier: Apache-2.0
// What torch's device-independent C++ asks of an accelerator.
//
// Threads: any; no state of its own.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "runtime/runtime.h"
#include "torch/device/errors.h"
#include "torch/device/generator.h"
#include "torch/device/pinned.h"
#include "torch/device/storage.h"
#include "torch/device/stream.h"
#include "torch/register.h"

namespace torch_fl {
namespace {

class FlagosHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }

  bool isAvailable() const override { return runtime::DeviceCount() > 0; }

  bool hasPrimaryContext(c10::DeviceIndex device) const override { return runtime::HasContext(ResolveDevice(device)); }

  // A context is made by the first memory or stream; here only the reason why there is no device is due.
  void init() const override {
    Translate([] { runtime::CheckDevice(runtime::CurrentDevice(), "init"); });
  }

  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(runtime::DeviceCount()); }

  void setCurrentDevice(c10::DeviceIndex device) const override {
    Translate([&] { runtime::SetDevice(device); });
  }

  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(runtime::CurrentDevice()); }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(Translate([&] { return runtime::ExchangeDevice(device); }));
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
    runtime::AllocationInfo info;
    TORCH_CHECK(runtime::FindAllocation(data, &info), "The specified pointer ", data,
                " lies in no live allocation of any flagos device.");
    return at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(info.device));
  }

  bool isPinnedPtr(const void* data) const override { return IsPinned(data); }

  at::Allocator* getPinnedMemoryAllocator() const override {
    return Translate([] { return PinnedAllocator(); });
  }

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
