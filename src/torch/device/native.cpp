// SPDX-License-Identifier: Apache-2.0
#include "torch/device/native.h"

#include <utility>

#include "torch/device/owner.h"
#include "torch/device/storage.h"
#include "torch/route/target.h"
#include "torch/route/tensor_access.h"

namespace torch_fl {
namespace {

void Check(const char* call, const at::Tensor& tensor, c10::DeviceType type) {
  TORCH_CHECK(Delegated(), call, ": the flagos devices of this process are not delegated to another backend of torch");
  TORCH_CHECK(tensor.device().type() == type, call, ": expected a ", type, " tensor but got one on ", tensor.device());
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == c10::kStrided && tensor.has_storage() && !tensor.is_nested() && !tensor.is_quantized(), call,
      ": only strided tensors can be converted, not ", tensor.toString(), " of layout ", tensor.layout());
  TORCH_CHECK(!tensor.requires_grad(), call,
              ": the tensor requires grad, which a conversion would lose; use "
              "tensor.detach()");
}

// With the autograd keys of an ordinary tensor, which the constructor derives from the backend's key.
at::Tensor Over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) tensor._set_conj(true);
  if (like.is_neg()) tensor._set_neg(true);
  return tensor;
}

}  // namespace

at::Tensor ToNative(const at::Tensor& tensor) {
  if (Delegated() && tensor.device().type() == ActiveTarget().type) return tensor;
  Check("to_native", tensor, kFlagos);
  const c10::Storage& storage = StorageOf(tensor.unsafeGetTensorImpl());
  FlagosStorage* flagos = AsFlagosStorage(storage.unsafeGetStorageImpl());
  return Over(c10::Storage(flagos != nullptr ? flagos->TwinRef() : TwinOfForeignStorage(storage)), ActiveTarget().dense,
              tensor);
}

at::Tensor FromNative(const at::Tensor& tensor) {
  if (tensor.device().type() == kFlagos) return tensor;
  Check("from_native", tensor, ActiveTarget().type);
  auto twin = StorageOf(tensor.unsafeGetTensorImpl()).getWeakStorageImpl().lock();
  return Over(c10::Storage(c10::make_intrusive<FlagosStorage>(std::move(twin), tensor.device().index())),
              c10::DispatchKey::PrivateUse1, tensor);
}

}  // namespace torch_fl
