// SPDX-License-Identifier: Apache-2.0
// The delegated owner: everything is forwarded to what another backend registered with torch. No state but the target.
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <string>

#include "torch/device/owner.h"
#include "torch/route/target.h"
#include "torch/version.h"

namespace torch_fl {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

// The target's guard. Looked up at each use: its library may be loaded, and so register it, after us.
const c10::impl::DeviceGuardImplInterface& Theirs() { return *c10::impl::getDeviceGuardImpl(ActiveTarget().type); }

Device ToTheirs(Device device) { return Device(ActiveTarget().type, device.index()); }
Device ToOurs(Device device) { return Device(kFlagos, device.index()); }
Stream ToTheirs(const Stream& stream) {
  return Stream(Stream::UNSAFE, Device(ActiveTarget().type, stream.device_index()), stream.id());
}
Stream ToOurs(const Stream& stream) {
  return Stream(Stream::UNSAFE, Device(kFlagos, stream.device_index()), stream.id());
}

// A stream and an event are the target's own: same id, same pointer.
class DelegatedGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kFlagos; }
  Device exchangeDevice(Device device) const override { return ToOurs(Theirs().exchangeDevice(ToTheirs(device))); }
  Device getDevice() const override { return ToOurs(Theirs().getDevice()); }
  void setDevice(Device device) const override {
    if (device.has_index()) Theirs().setDevice(ToTheirs(device));
  }
  void uncheckedSetDevice(Device device) const noexcept override { Theirs().uncheckedSetDevice(ToTheirs(device)); }
  DeviceIndex deviceCount() const noexcept override { return Theirs().deviceCount(); }
#if TORCH_FL_HAS_DEVICE_CAPABILITY
  c10::DeviceCapability getDeviceCapability(Device device) const override {
    return Theirs().getDeviceCapability(ToTheirs(device));
  }
#endif

  Stream getStream(Device device) const override { return ToOurs(Theirs().getStream(ToTheirs(device))); }
  Stream getDefaultStream(Device device) const override { return ToOurs(Theirs().getDefaultStream(ToTheirs(device))); }
  Stream getStreamFromGlobalPool(Device device, bool high_priority) const override {
    return ToOurs(Theirs().getStreamFromGlobalPool(ToTheirs(device), high_priority));
  }
  Stream getNewStream(Device device, int priority) const override {
    return ToOurs(Theirs().getNewStream(ToTheirs(device), priority));
  }
  Stream exchangeStream(Stream stream) const override { return ToOurs(Theirs().exchangeStream(ToTheirs(stream))); }
  bool queryStream(const Stream& stream) const override { return Theirs().queryStream(ToTheirs(stream)); }
  void synchronizeStream(const Stream& stream) const override { Theirs().synchronizeStream(ToTheirs(stream)); }
  void synchronizeDevice(const DeviceIndex index) const override { Theirs().synchronizeDevice(index); }
#if TORCH_FL_TORCH_AT_LEAST(2, 11)
  void* getStreamNativeHandle(const Stream stream) const override {
    return Theirs().getStreamNativeHandle(ToTheirs(stream));
  }
#endif
#if TORCH_FL_TORCH_AT_LEAST(2, 12)
  bool isStreamCapturing(const Stream& stream) const override { return Theirs().isStreamCapturing(ToTheirs(stream)); }
#endif
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const Stream& stream) const override {
    ActiveOwner().RecordStream(pointer, stream);
  }

  void record(void** event, const Stream& stream, const DeviceIndex index, const c10::EventFlag flag) const override {
    Theirs().record(event, ToTheirs(stream), index, flag);
  }
  void block(void* event, const Stream& stream) const override { Theirs().block(event, ToTheirs(stream)); }
  bool queryEvent(void* event) const override { return Theirs().queryEvent(event); }
  void synchronizeEvent(void* event) const override { Theirs().synchronizeEvent(event); }
  void destroyEvent(void* event, const DeviceIndex index) const noexcept override {
    Theirs().destroyEvent(event, index);
  }
  double elapsedTime(void* start, void* end, const DeviceIndex index) const override {
    return Theirs().elapsedTime(start, end, index);
  }
};

// The target's pool under our device type. Twins take their bytes from it directly; this one serves callers that ask for
// the allocator of the flagos device.
class DelegatedAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    c10::DataPtr data = Pool().allocate(nbytes);
    data.unsafe_set_device(ToOurs(data.device()));
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return Pool().raw_deleter(); }
  void copy_data(void* dst, const void* src, size_t nbytes) const override { Pool().copy_data(dst, src, nbytes); }

  bool initialized() override { return Pool().initialized(); }
  void emptyCache(c10::MempoolId_t pool) override { Pool().emptyCache(pool); }
  void recordStream(const c10::DataPtr& bytes, Stream stream) override { ActiveOwner().RecordStream(bytes, stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    return Pool().getDeviceStats(device);
  }
  void resetAccumulatedStats(DeviceIndex device) override { Pool().resetAccumulatedStats(device); }
  void resetPeakStats(DeviceIndex device) override { Pool().resetPeakStats(device); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override { return Pool().getMemoryInfo(device); }

 private:
  static c10::DeviceAllocator& Pool() { return *c10::getDeviceAllocator(ActiveTarget().type); }
};

class DelegatedTo final : public Owner {
 public:
  std::string Delegate() const override { return Name(); }
  void Register() override {
    TORCH_CHECK(c10::impl::hasDeviceGuardImpl(ActiveTarget().type), "torch_fl cannot delegate devices to '", Name(),
                "': this build of torch has no such backend");
    // Both leaked: torch keeps the pointers until the process ends.
    c10::impl::registerDeviceGuard(kFlagos, new DelegatedGuard);
    c10::SetAllocator(kFlagos, new DelegatedAllocator);
    if (at::HostAllocator* pinned = at::getHostAllocator(ActiveTarget().type)) at::setHostAllocator(kFlagos, pinned);
  }

  int DeviceCount() const noexcept override { return Theirs().deviceCount(); }
  std::string UnavailableReason() const override {
    return DeviceCount() > 0 ? "" : "the " + Name() + " backend of torch reports no device";
  }
  int CurrentDevice() const noexcept override {
    try {
      return Theirs().getDevice().index();
    } catch (...) {
      return 0;
    }
  }
  int ExchangeDevice(int device) const override {
    if (device < 0) return CurrentDevice();
    return Theirs().exchangeDevice(Device(ActiveTarget().type, static_cast<DeviceIndex>(device))).index();
  }
  bool HasContext(int device) const noexcept override {
    try {
      return device >= 0 && device < DeviceCount() && Hooks().hasPrimaryContext(static_cast<DeviceIndex>(device));
    } catch (...) {
      return false;
    }
  }
  void SynchronizeDevice(int device) const override {
    Theirs().synchronizeDevice(static_cast<DeviceIndex>(ResolveDevice(device)));
  }
  std::pair<size_t, size_t> DeviceMemory(int device) const override {
    CheckDevice(device, "mem_get_info");
    return c10::getDeviceAllocator(ActiveTarget().type)->getMemoryInfo(static_cast<DeviceIndex>(device));
  }
  void CheckDevice(int device, const char* call) const override {
    const int count = DeviceCount();
    TORCH_CHECK(count > 0, call, ": no flagos device: ", UnavailableReason());
    TORCH_CHECK(device >= 0 && device < count, call, ": invalid device flagos:", device, ", valid are 0..", count - 1);
  }
  void Init() const override {
    CheckDevice(0, "init");
    at::globalContext().lazyInitDevice(ActiveTarget().type);
  }

  bool HasTarget() const override { return true; }
  c10::DataPtr AllocateTarget(size_t nbytes, DeviceIndex device, const char*) const override {
    const Device where(ActiveTarget().type, device);
    at::globalContext().lazyInitDevice(where.type());
    const c10::DeviceGuard guard(where);
    return c10::GetAllocator(where.type())->allocate(nbytes);
  }
  c10::DataPtr ToTarget(c10::DataPtr data, DeviceIndex device) const override {
    data.unsafe_set_device(Device(ActiveTarget().type, device));
    return data;
  }
  void ResizeTwin(c10::StorageImpl* twin, size_t nbytes, DeviceIndex device, const char* op) const override {
    c10::DataPtr fresh = AllocateTarget(nbytes, device, op);
    const size_t keep = std::min(nbytes, twin->nbytes());
    if (keep > 0) CopyOnDevice(fresh.get(), twin->data(), keep, device);
    twin->set_data_ptr_noswap(std::move(fresh));
    twin->set_nbytes(nbytes);
  }
  void Copy(void* dst, int dst_device, const void* src, int src_device, size_t nbytes) const override {
    Bytes(dst, dst_device, nbytes).copy_(Bytes(const_cast<void*>(src), src_device, nbytes), /*non_blocking=*/false);
  }
  void RecordStream(const c10::DataPtr& bytes, Stream stream) const override {
    if (bytes.get() == nullptr) return;
    Theirs().recordDataPtrOnStream(bytes, ToTheirs(stream));
  }
  DeviceIndex DeviceOfPointer(void* pointer) const override {
    return at::globalContext().getDeviceFromPtr(pointer, ActiveTarget().type).index();
  }
  c10::Allocator* PinnedAllocator() const override {
    return at::globalContext().getPinnedMemoryAllocator(ActiveTarget().type);
  }
  bool IsPinned(const void* pointer) const noexcept override {
    try {
      return at::globalContext().isPinnedPtr(pointer, ActiveTarget().type);
    } catch (...) {
      return false;
    }
  }

  // One sequence of numbers for both device types, so that every way of seeding the target's generator seeds ours.
  at::Generator DefaultInner(int device) const override {
    return at::globalContext().defaultGenerator(Device(ActiveTarget().type, static_cast<DeviceIndex>(device)));
  }
  at::Generator NewInner(int device) const override {
    return Hooks().getNewGenerator(static_cast<DeviceIndex>(device));
  }

 private:
  static const at::AcceleratorHooksInterface& Hooks() {
    return at::globalContext().getAcceleratorHooksInterface(ActiveTarget().type);
  }
  static std::string Name() { return c10::DeviceTypeName(ActiveTarget().type, /*lower_case=*/true); }

  // A tensor of the target (or of the CPU) over bytes that somebody else owns. Never one of ours: it would be routed.
  static at::Tensor Bytes(void* data, int device, size_t nbytes) {
    const Device where = device < 0 ? Device(at::kCPU) : Device(ActiveTarget().type, static_cast<DeviceIndex>(device));
    return at::for_blob(data, {static_cast<int64_t>(nbytes)})
        .options(at::TensorOptions(at::kByte).device(where))
        .target_device(where)
        .make_tensor();
  }
  static void CopyOnDevice(void* dst, const void* src, size_t nbytes, DeviceIndex device) {
    Bytes(dst, device, nbytes).copy_(Bytes(const_cast<void*>(src), device, nbytes), /*non_blocking=*/true);
  }
};

}  // namespace

Owner& DelegatedOwner() {
  static auto* owner = new DelegatedTo;  // leaked: tensors outlive static destructors
  return *owner;
}

}  // namespace torch_fl
