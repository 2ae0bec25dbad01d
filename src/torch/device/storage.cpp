// SPDX-License-Identifier: Apache-2.0
#include "torch/device/storage.h"

#include <algorithm>
#include <mutex>
#include <typeinfo>
#include <utility>

#include "torch/device/allocator.h"
#include "torch/device/owner.h"
#include "torch/route/alias.h"
#include "torch/route/scope.h"
#include "torch/route/target.h"
#include "torch/route/tensor_access.h"

namespace torch_fl {
namespace {

// Deleter that marks a DataPtr as a mirror of the twin. Its context is null, so it is never called.
void MirrorMark(void*) {}

c10::DataPtr Mirror(void* twin_address, ptrdiff_t offset, c10::DeviceIndex device) {
  void* address = twin_address == nullptr ? nullptr : static_cast<char*>(twin_address) - offset;
  return {address, nullptr, &MirrorMark, c10::Device(kFlagos, device)};
}

bool IsMirror(const c10::DataPtr& data) { return data.get_deleter() == &MirrorMark && data.get_context() == nullptr; }

std::mutex g_reconcile_mutex;

c10::intrusive_ptr<c10::StorageImpl> NewTwin(c10::DataPtr data, size_t nbytes, bool resizable) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                               c10::SymInt(static_cast<int64_t>(nbytes)), std::move(data),
                                               c10::GetAllocator(ActiveTarget().type), resizable);
}

// target address = device address + offset
ptrdiff_t TwinOffset(c10::DeviceIndex device) { return Delegated() ? 0 : TargetOffset(device); }

// Factory that c10 calls for every storage of this device.
c10::intrusive_ptr<c10::StorageImpl> CreateStorage(c10::StorageImpl::use_byte_size_t, c10::SymInt size,
                                                   c10::DataPtr data, c10::Allocator*, bool resizable) {
  auto nbytes = static_cast<size_t>(size.as_int_unchecked());
  if (!data && !data.get_context()) {
    int device = data.device().type() == kFlagos && data.device().has_index() ? data.device().index()
                                                                              : ActiveOwner().CurrentDevice();
    return MakeFlagosStorage(nbytes, static_cast<c10::DeviceIndex>(device), t_route.op);
  }
  c10::DeviceIndex device = data.device().index();
  if (!ActiveOwner().HasTarget()) return c10::make_intrusive<FlagosStorage>(std::move(data), nbytes, resizable);
  return c10::make_intrusive<FlagosStorage>(NewTwin(ActiveOwner().ToTarget(std::move(data), device), nbytes, resizable),
                                            device);
}

}  // namespace

FlagosStorage::FlagosStorage(c10::intrusive_ptr<c10::StorageImpl> twin, c10::DeviceIndex device)
    : StorageImpl(use_byte_size_t(), c10::SymInt(static_cast<int64_t>(twin->nbytes())),
                  Mirror(twin->_mutable_data_ptr_no_checks().get(), TwinOffset(device), device),
                  c10::GetAllocator(kFlagos), true),
      twin_(std::move(twin)),
      view_offset_(TwinOffset(device)),
      device_index_(device) {}

FlagosStorage::FlagosStorage(c10::DataPtr data, size_t nbytes, bool resizable)
    : StorageImpl(use_byte_size_t(), c10::SymInt(static_cast<int64_t>(nbytes)), std::move(data),
                  c10::GetAllocator(kFlagos), resizable),
      device_index_(device().index()) {}

FlagosStorage::~FlagosStorage() { DropAliases(); }

void FlagosStorage::release_resources() {
  DropAliases();
  twin_.reset();
  StorageImpl::release_resources();
}

void FlagosStorage::DropAliases() {
  for (Slot& slot : slots_) {
    if (slot.state.load(std::memory_order_acquire) != kPublished) continue;
    slot.alias.reset();
    slot.state.store(kEmpty, std::memory_order_release);
  }
}

bool FlagosStorage::InStep() const {
  if (!twin_) return true;
  auto* self = const_cast<FlagosStorage*>(this);
  auto* theirs = static_cast<char*>(twin_->_mutable_data_ptr_no_checks().get());
  auto* ours = static_cast<char*>(self->_mutable_data_ptr_no_checks().get());
  bool same_address = theirs == nullptr ? ours == nullptr : ours == theirs - view_offset_;
  return same_address && twin_->nbytes() == nbytes();
}

// Two histories end here: a kernel resized the twin (our pointer is still a mirror: follow it), or somebody gave this storage
// bytes of its own (they move into a new twin, and aliases of the old one go).
void FlagosStorage::Reconcile() {
  std::lock_guard<std::mutex> lock(g_reconcile_mutex);
  if (InStep()) return;
  c10::DataPtr& mine = _mutable_data_ptr_no_checks();
  if (IsMirror(mine)) {
    set_data_ptr_noswap(Mirror(twin_->_mutable_data_ptr_no_checks().get(), view_offset_, device_index_));
    set_nbytes(twin_->nbytes());
    return;
  }
  c10::DataPtr bytes = std::move(mine);
  DropAliases();
  twin_ = NewTwin(ActiveOwner().ToTarget(std::move(bytes), device_index_), nbytes(), /*resizable=*/true);
  set_data_ptr_noswap(Mirror(twin_->_mutable_data_ptr_no_checks().get(), view_offset_, device_index_));
}

const at::Tensor* FlagosStorage::FindAlias(const c10::TensorImpl* impl, c10::DispatchKeySet keys) const {
  for (const Slot& slot : slots_) {
    if (slot.state.load(std::memory_order_acquire) != kPublished) return nullptr;
    if (AliasFits(impl, slot.alias.unsafeGetTensorImpl(), keys)) return &slot.alias;
  }
  return nullptr;
}

const at::Tensor* FlagosStorage::PublishAlias(at::Tensor&& alias) {
  for (Slot& slot : slots_) {
    uint8_t expected = kEmpty;
    if (!slot.state.compare_exchange_strong(expected, kWriting, std::memory_order_acq_rel)) continue;
    slot.alias = std::move(alias);
    slot.state.store(kPublished, std::memory_order_release);
    return &slot.alias;
  }
  return nullptr;
}

FlagosStorage* AsFlagosStorage(c10::StorageImpl* storage) {
  if (storage == nullptr || typeid(*storage) != typeid(FlagosStorage)) return nullptr;
  return static_cast<FlagosStorage*>(storage);
}

c10::intrusive_ptr<c10::StorageImpl> MakeFlagosStorage(size_t nbytes, c10::DeviceIndex device, const char* op) {
  if (!Delegated() && !ActiveOwner().HasTarget())
    return c10::make_intrusive<FlagosStorage>(AllocateDevice(nbytes, device, op), nbytes, /*resizable=*/true);
  return c10::make_intrusive<FlagosStorage>(
      NewTwin(ActiveOwner().AllocateTarget(nbytes, device, op), nbytes, /*resizable=*/true), device);
}

bool IsDeviceMemory(const c10::StorageImpl& target, c10::DeviceIndex device) {
  if (Delegated()) return target.device().type() == ActiveTarget().type;
  const void* bytes = const_cast<c10::StorageImpl&>(target)._mutable_data_ptr_no_checks().get();
  int owner = -1;
  return bytes == nullptr || (OwnsTargetAddress(bytes, &owner) && owner == device);
}

bool AdoptInPlace(const at::Tensor& result, c10::DeviceIndex device) {
  c10::TensorImpl* impl = result.unsafeGetTensorImpl();
  const Target& target = ActiveTarget();
  c10::Storage& storage = impl->*TensorAccess::StorageField();
  if (!storage || !impl->key_set().has_backend(target.bit) || result.use_count() != 1 || storage.use_count() != 1)
    return false;
  if (Delegated())
    device = storage.device().index();  // the target knows where its kernel put the result
  else if (!IsDeviceMemory(*storage.unsafeGetStorageImpl(), device))
    return false;
  auto twin = c10::intrusive_ptr<c10::StorageImpl>::reclaim(storage.unsafeReleaseStorageImpl());
  storage = c10::Storage(c10::make_intrusive<FlagosStorage>(std::move(twin), device));
  impl->*TensorAccess::DeviceField() = c10::Device(kFlagos, device);
  impl->*TensorAccess::KeySetField() = target.ToFlagos(impl->key_set());
  return true;
}

void ResizeFlagosStorage(const c10::Storage& storage, size_t nbytes) {
  FlagosStorage* flagos = AsFlagosStorage(storage.unsafeGetStorageImpl());
  TORCH_CHECK(flagos != nullptr,
              "resize_: this flagos storage was made outside torch_fl and cannot be resized; clone the tensor first");
  TORCH_CHECK(flagos->resizable(), "Trying to resize storage that is not resizable");
  c10::DeviceIndex device = flagos->device_index();
  const char* op = t_route.op != nullptr ? t_route.op : "resize_";
  if (c10::StorageImpl* twin = flagos->Twin()) {
    ActiveOwner().ResizeTwin(twin, nbytes, device, op);
    flagos->Twin();
    return;
  }
  c10::DataPtr fresh = AllocateDevice(nbytes, device, op);
  size_t keep = std::min(nbytes, flagos->nbytes());
  if (keep > 0) ActiveOwner().Copy(fresh.get(), device, flagos->data(), device, keep);
  flagos->set_data_ptr_noswap(std::move(fresh));
  flagos->set_nbytes(nbytes);
}

c10::intrusive_ptr<c10::StorageImpl> TwinOfForeignStorage(const c10::Storage& storage) {
  c10::DeviceIndex device = storage.device().index();
  auto* base = static_cast<char*>(const_cast<void*>(storage.data()));
  void* view = base == nullptr ? nullptr : base + TwinOffset(device);
  auto* keep = new c10::Storage(storage);
  c10::DataPtr data(
      view, keep, [](void* p) { delete static_cast<c10::Storage*>(p); }, ActiveTarget().DeviceFor(device));
  return NewTwin(std::move(data), storage.nbytes(), /*resizable=*/false);
}

void RegisterStorage() { c10::SetStorageImplCreate(kFlagos, &CreateStorage); }

}  // namespace torch_fl
