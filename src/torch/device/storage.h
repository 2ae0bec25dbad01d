// SPDX-License-Identifier: Apache-2.0
// FlagosStorage: the storage of every flagos tensor, and its twin on the target device.
//
// With a target to alias (host view, or another backend in the process) the twin is the StorageImpl that owns the bytes,
// exactly as the target's kernel made it; the FlagosStorage's own DataPtr is a mirror that owns nothing. References go
// FlagosStorage -> twin and FlagosStorage -> published alias -> twin: no cycle, and the bytes live while anybody holds the
// twin. Without a target the FlagosStorage owns its bytes itself and has no twin.
//
// Threads: a storage may be aliased from many threads at once. Giving it new bytes is the caller's to order, as on any device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstddef>

namespace torch_fl {

class FlagosStorage final : public c10::StorageImpl {
 public:
  // Round `twin`, which owns `twin->nbytes()` bytes of memory of flagos device `device`.
  FlagosStorage(c10::intrusive_ptr<c10::StorageImpl> twin, c10::DeviceIndex device);
  // Owner of device memory that no target can see.
  FlagosStorage(c10::DataPtr data, size_t nbytes, bool resizable);
  ~FlagosStorage() override;
  void release_resources() override;

  c10::DeviceIndex device_index() const { return device_index_; }

  // The twin, in step with this storage; null when there is no target. Repairs the pair first when somebody resized the twin
  // or gave this storage other bytes.
  c10::StorageImpl* Twin() {
    if (C10_UNLIKELY(!InStep())) Reconcile();
    return twin_.get();
  }
  const c10::intrusive_ptr<c10::StorageImpl>& TwinRef() {
    Twin();
    return twin_;
  }
  // The twin as it is: an identity to compare with, nothing more.
  const c10::StorageImpl* TwinIdentity() const { return twin_.get(); }

  // An alias that was built before and fits `impl` under `keys`, or null. Never changes while this storage lives, so the
  // caller may use it without counting a reference.
  const at::Tensor* FindAlias(const c10::TensorImpl* impl, c10::DispatchKeySet keys) const;
  // Publishes `alias` for later calls if a slot is free; returns the published tensor, else null.
  const at::Tensor* PublishAlias(at::Tensor&& alias);

 private:
  static constexpr int kSlots = 2;
  enum SlotState : uint8_t { kEmpty, kWriting, kPublished };
  struct Slot {
    std::atomic<uint8_t> state{kEmpty};
    at::Tensor alias;
  };

  bool InStep() const;
  void Reconcile();
  void DropAliases();

  c10::intrusive_ptr<c10::StorageImpl> twin_;
  ptrdiff_t view_offset_ = 0;  // twin address = own address + offset
  c10::DeviceIndex device_index_;
  Slot slots_[kSlots];
};

// The FlagosStorage behind a StorageImpl, or null when it was made elsewhere ("foreign": pickling, from_blob).
FlagosStorage* AsFlagosStorage(c10::StorageImpl* storage);

// New storage of `nbytes` bytes on flagos:device. Throws c10::OutOfMemoryError.
c10::intrusive_ptr<c10::StorageImpl> MakeFlagosStorage(size_t nbytes, c10::DeviceIndex device, const char* op);

// Gives the storage `nbytes` bytes, keeping the common prefix. Works for 0 and back. Refuses foreign storages.
void ResizeFlagosStorage(const c10::Storage& storage, size_t nbytes);

// A target StorageImpl for the call that shares the bytes of a foreign flagos storage and keeps it alive.
c10::intrusive_ptr<c10::StorageImpl> TwinOfForeignStorage(const c10::Storage& storage);

// May a storage that the target's kernel made become a twin on flagos:device without moving its bytes?
bool IsDeviceMemory(const c10::StorageImpl& target, c10::DeviceIndex device);

// Adopts a fresh result in place: puts a FlagosStorage round its storage and seats it on flagos:device. False, and nothing
// changed, when somebody else holds the tensor or its storage, or when the bytes do not lie in the device's pool.
bool AdoptInPlace(const at::Tensor& result, c10::DeviceIndex device);

// Installs the storage factory with c10.
void RegisterStorage();

}  // namespace torch_fl
