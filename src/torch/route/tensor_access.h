// SPDX-License-Identifier: Apache-2.0
// Legal access to the protected fields of TensorImpl that re-seating a tensor on another device needs. A pointer to a
// protected member formed inside a derived class has the base's type, so no object is ever cast to a type it is not.
#pragma once

#include <c10/core/TensorImpl.h>

namespace torch_fl {

struct TensorAccess : c10::TensorImpl {
  static constexpr auto KeySetField() { return &TensorAccess::key_set_; }
  static constexpr auto StorageField() { return &TensorAccess::storage_; }
  static constexpr auto DeviceField() { return &TensorAccess::device_opt_; }
  static constexpr auto VersionField() { return &TensorAccess::version_counter_; }
  static constexpr auto SizesField() { return &TensorAccess::sizes_and_strides_; }
  static constexpr auto OffsetField() { return &TensorAccess::storage_offset_; }
  static constexpr auto NumelField() { return &TensorAccess::numel_; }
  static constexpr auto DtypeField() { return &TensorAccess::data_type_; }
  static constexpr auto ExtraField() { return &TensorAccess::extra_meta_; }
  static void CopyMetadata(const TensorImpl* from, TensorImpl* to) { copy_generic_tensor_metadata(from, to); }
};

inline const c10::Storage& StorageOf(const c10::TensorImpl* impl) { return impl->*TensorAccess::StorageField(); }
inline c10::StorageImpl* StorageImplOf(const c10::TensorImpl* impl) { return StorageOf(impl).unsafeGetStorageImpl(); }
inline bool IsFlagos(const c10::TensorImpl* impl) {
  return impl->key_set().has_backend(c10::BackendComponent::PrivateUse1Bit);
}

}  // namespace torch_fl
