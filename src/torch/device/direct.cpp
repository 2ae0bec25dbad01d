// SPDX-License-Identifier: Apache-2.0
// The direct owner: the runtime over a driver.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/Resize.h>

#include <memory>
#include <string>

#include "runtime/runtime.h"
#include "torch/device/allocator.h"
#include "torch/device/errors.h"
#include "torch/device/owner.h"
#include "torch/device/pinned.h"
#include "torch/register.h"
#include "torch/route/scope.h"
#include "torch/route/target.h"

namespace torch_fl {
namespace {

class Direct final : public Owner {
 public:
  void Register() override {
    RegisterGuard();
    RegisterAllocator();
    RegisterPinned();
    InstallTargetAllocator();
  }

  int DeviceCount() const noexcept override { return runtime::DeviceCount(); }
  std::string UnavailableReason() const override { return runtime::UnavailableReason(); }
  int CurrentDevice() const noexcept override { return runtime::CurrentDevice(); }
  int ExchangeDevice(int device) const override {
    return Translate([&] { return runtime::ExchangeDevice(device); });
  }
  bool HasContext(int device) const noexcept override { return runtime::HasContext(device); }
  void SynchronizeDevice(int device) const override {
    Translate([&] { runtime::SynchronizeDevice(device); });
  }
  std::pair<size_t, size_t> DeviceMemory(int device) const override {
    uint64_t free_bytes = 0, total_bytes = 0;
    Translate([&] { runtime::DeviceMemory(device, &free_bytes, &total_bytes); });
    return {free_bytes, total_bytes};
  }
  void CheckDevice(int device, const char* call) const override {
    Translate([&] { runtime::CheckDevice(device, call); });
  }
  // A context is made by the first memory or stream; here only the reason why there is no device is due.
  void Init() const override { CheckDevice(runtime::CurrentDevice(), "init"); }

  bool HasTarget() const override {
    return Translate([] { return runtime::HostView(); });
  }
  c10::DataPtr AllocateTarget(size_t nbytes, c10::DeviceIndex device, const char* op) const override {
    return AllocateTargetView(nbytes, device, op);
  }
  c10::DataPtr ToTarget(c10::DataPtr data, c10::DeviceIndex device) const override {
    void* address = data.get();
    const c10::Device where = ActiveTarget().DeviceFor(device);
    if (address == nullptr) return {nullptr, where};
    void* view = static_cast<char*>(address) + TargetOffset(device);
    int owner = -1;
    if (data.get_context() == address && runtime::Owns(address, &owner)) {
      data.release_context();
      return {view, view, [](void* p) { FreeTargetAddress(p); }, where};
    }
    // Somebody else's memory (from_blob, an imported block): keep the caller's DataPtr alive behind ours.
    auto* keep = new c10::DataPtr(std::move(data));
    return {view, keep, [](void* p) { delete static_cast<c10::DataPtr*>(p); }, where};
  }
  void ResizeTwin(c10::StorageImpl* twin, size_t nbytes, c10::DeviceIndex device, const char* op) const override {
    // The bytes to keep are read here and now, on the host.
    if (nbytes > 0 && twin->nbytes() > 0) Translate([&] { runtime::KernelBegin(device); });
    RouteScope scope(device, op);  // the twin's new bytes must be device memory
    at::native::resize_bytes_cpu(twin, nbytes);
  }
  void Copy(void* dst, int dst_device, const void* src, int src_device, size_t nbytes) const override {
    Translate([&] { runtime::Copy(dst, dst_device, src, src_device, nbytes, /*async=*/false); });
  }
  void RecordStream(const c10::DataPtr& bytes, c10::Stream stream) const override {
    FlagosAllocator()->recordStream(bytes, stream);
  }
  c10::DeviceIndex DeviceOfPointer(void* pointer) const override {
    runtime::AllocationInfo info;
    TORCH_CHECK(runtime::FindAllocation(pointer, &info), "The specified pointer ", pointer,
                " lies in no live allocation of any flagos device.");
    return static_cast<c10::DeviceIndex>(info.device);
  }
  c10::Allocator* PinnedAllocator() const override {
    return Translate([] { return torch_fl::PinnedAllocator(); });
  }
  bool IsPinned(const void* pointer) const noexcept override { return torch_fl::IsPinned(pointer); }

  // No inner generator is shared with the CPU's default one, so a draw on flagos never advances the CPU's numbers.
  at::Generator DefaultInner(int) const override {
    return at::detail::createCPUGenerator(c10::detail::getNonDeterministicRandom());
  }
  at::Generator NewInner(int) const override { return at::detail::createCPUGenerator(); }
};

}  // namespace

Owner& DirectOwner() {
  static auto* owner = new Direct;  // leaked: tensors outlive static destructors
  return *owner;
}

}  // namespace torch_fl
