// SPDX-License-Identifier: Apache-2.0
#include "torch/route/alias.h"

#include <utility>

#include "torch/device/storage.h"
#include "torch/route/target.h"
#include "torch/route/tensor_access.h"

namespace torch_fl {
namespace {

class AliasImpl final : public c10::TensorImpl {
 public:
  AliasImpl(c10::Storage&& storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype)
      : TensorImpl(VIEW, std::move(storage), keys, dtype) {
    version_counter_ = c10::VariableVersion(0);
  }

  uint32_t version() const { return version_counter_.current_version(); }

  // Takes shape and layout flags as they are: recomputing contiguity costs more than the rest of the alias.
  void TakeShape(const c10::TensorImpl* from) {
    sizes_and_strides_ = from->*TensorAccess::SizesField();
    storage_offset_ = from->*TensorAccess::OffsetField();
    numel_ = from->*TensorAccess::NumelField();
    is_contiguous_ = from->is_contiguous_default(at::MemoryFormat::Contiguous);
    is_non_overlapping_and_dense_ = from->is_non_overlapping_and_dense_default();
    if (sizes_and_strides_.size() >= 4) {
      is_channels_last_contiguous_ = from->is_contiguous_default(at::MemoryFormat::ChannelsLast);
      is_channels_last_3d_contiguous_ = from->is_contiguous_default(at::MemoryFormat::ChannelsLast3d);
      is_channels_last_ = from->is_strides_like_default(at::MemoryFormat::ChannelsLast);
      is_channels_last_3d_ = from->is_strides_like_default(at::MemoryFormat::ChannelsLast3d);
    }
  }
};

}  // namespace

bool AliasFits(const c10::TensorImpl* impl, const c10::TensorImpl* alias, c10::DispatchKeySet keys) {
  const auto& ours = impl->*TensorAccess::SizesField();
  const auto& theirs = alias->*TensorAccess::SizesField();
  const size_t rank = ours.size();
  if (alias->key_set() != keys || rank != theirs.size() ||
      impl->*TensorAccess::OffsetField() != alias->*TensorAccess::OffsetField() ||
      impl->*TensorAccess::DtypeField() != alias->*TensorAccess::DtypeField())
    return false;
  const int64_t *size_a = ours.sizes_data(), *size_b = theirs.sizes_data();
  const int64_t *stride_a = ours.strides_data(), *stride_b = theirs.strides_data();
  int64_t difference = 0;
  for (size_t i = 0; i < rank; ++i) difference |= (size_a[i] ^ size_b[i]) | (stride_a[i] ^ stride_b[i]);
  return difference == 0;
}

at::Tensor BuildAlias(const c10::TensorImpl* impl, c10::intrusive_ptr<c10::StorageImpl> twin,
                      c10::DispatchKeySet keys) {
  TORCH_CHECK(!impl->has_symbolic_sizes_strides(), "flagos: a tensor with symbolic sizes reached a kernel");
  auto alias = c10::make_intrusive<AliasImpl>(c10::Storage(std::move(twin)), keys, impl->dtype());
  if (C10_UNLIKELY(impl->*TensorAccess::ExtraField() != nullptr)) {  // names and the like
    c10::Device device = alias->device();
    TensorAccess::CopyMetadata(impl, alias.get());
    alias.get()->*TensorAccess::DeviceField() = device;
    alias.get()->*TensorAccess::KeySetField() = keys;
    alias.get()->*TensorAccess::NumelField() = impl->*TensorAccess::NumelField();
  } else {
    alias->TakeShape(impl);
  }
  if (impl->is_wrapped_number()) alias->set_wrapped_number(true);
  return at::Tensor(std::move(alias));
}

uint32_t AliasVersion(const c10::TensorImpl* alias) { return static_cast<const AliasImpl*>(alias)->version(); }

at::Tensor TargetAlias(const at::Tensor& tensor) {
  if (!tensor.defined() || !IsFlagos(tensor.unsafeGetTensorImpl()) || !tensor.has_storage()) return tensor;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::DispatchKeySet keys = ActiveTarget().ToTarget(impl->key_set());
  FlagosStorage* storage = AsFlagosStorage(StorageImplOf(impl));
  if (storage == nullptr) return BuildAlias(impl, TwinOfForeignStorage(StorageOf(impl)), keys);
  TORCH_CHECK(storage->Twin() != nullptr, "flagos: this device has no target whose kernels could see its memory");
  return BuildAlias(impl, storage->TwinRef(), keys);
}

}  // namespace torch_fl
