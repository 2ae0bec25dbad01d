// SPDX-License-Identifier: Apache-2.0
// Operators on the storage itself: set_, resize_, record_stream and what Module.to needs to keep a Parameter's identity.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <torch/library.h>

#include "runtime/runtime.h"
#include "torch/aten/register.h"
#include "torch/device/allocator.h"
#include "torch/device/errors.h"
#include "torch/device/owner.h"
#include "torch/device/storage.h"
#include "torch/route/target.h"

namespace torch_fl {
namespace {

void GrowStorage(c10::TensorImpl* impl, size_t nbytes) {
  if (impl->numel() == 0) return;
  const c10::Storage& storage = impl->unsafe_storage();
  TORCH_CHECK(storage, "resize_: tensor has no storage");
  if (nbytes > storage.nbytes()) ResizeFlagosStorage(storage, nbytes);
}

size_t NeededBytes(const c10::TensorImpl* impl) {
  return at::detail::computeStorageNbytes(impl->sizes(), impl->strides(), impl->dtype().itemsize(),
                                          static_cast<size_t>(impl->storage_offset()));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> memory_format) {
  Translate([] { runtime::CheckAttention("aten::resize_"); });
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  const size_t old_nbytes = self.storage().nbytes();
  if (impl->sizes() != size || memory_format) {
    impl->set_sizes_contiguous(size);
    GrowStorage(impl, NeededBytes(impl));
    if (memory_format) {
      TORCH_CHECK(*memory_format != at::MemoryFormat::Preserve, "Unsupported memory format", *memory_format);
      impl->empty_tensor_restride(*memory_format);
    }
  }
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory()))
    at::native::fill_resize_deterministic_(self, static_cast<int64_t>(old_nbytes));
  return self;
}

at::Tensor& set_source_Storage_storage_offset(at::Tensor& self, at::Storage source, int64_t storage_offset,
                                              at::IntArrayRef size, at::IntArrayRef stride) {
  Translate([] { runtime::CheckAttention("aten::set_"); });
  at::native::checkSetStorage(self, source, storage_offset, size, stride);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(storage_offset);
  if (stride.data() != nullptr) {
    impl->set_sizes_and_strides(size, stride);
  } else {
    impl->set_sizes_contiguous(size);
  }
  GrowStorage(impl, NeededBytes(impl));
  return self;
}

at::Tensor& set_source_Storage(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_source_Storage_storage_offset(self, std::move(source), 0, {count}, {});
}

at::Tensor& set_source_Tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  TORCH_CHECK(source.device() == self.device(), "set_: the source tensor is on ", source.device(),
              " but the tensor is on ", self.device());
  return set_source_Storage_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(),
                                           source.strides());
}

at::Tensor& set_(at::Tensor& self) {
  const auto device = self.device().index();
  return set_source_Storage_storage_offset(self, c10::Storage(MakeFlagosStorage(0, device, "aten::set_")), 0, {0}, {});
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == kFlagos || (Delegated() && stream.device_type() == ActiveTarget().type),
              "record_stream: the tensor is on ", self.device(), " but the stream belongs to ", stream.device());
  Translate([] { runtime::CheckAttention("aten::record_stream"); });
  if (!self.has_storage() || self.storage().nbytes() == 0) return;
  // The pool knows its block by the DataPtr that owns it: the twin's, where there is one.
  FlagosStorage* storage = AsFlagosStorage(self.storage().unsafeGetStorageImpl());
  c10::StorageImpl* twin = storage != nullptr ? storage->Twin() : nullptr;
  ActiveOwner().RecordStream(twin != nullptr ? twin->data_ptr() : self.storage().data_ptr(), stream);
}

// Lets `param.data = flagos_tensor` work, so that Module.to keeps Parameters (and the optimizers that hold them). Composite in
// ATen and not differentiable, so a kernel of our own takes no gradient away.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto strided_backend = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided &&
           (tensor.device().type() == kFlagos || tensor.device().type() == at::kCPU ||
            tensor.device().type() == ActiveTarget().type);
  };
  if (strided_backend(self) && strided_backend(from)) return true;
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

}  // namespace

void RegisterStorageOps() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("resize_", TORCH_FN(resize_));
  library->impl("set_.source_Storage_storage_offset", TORCH_FN(set_source_Storage_storage_offset));
  library->impl("set_.source_Storage", TORCH_FN(set_source_Storage));
  library->impl("set_.source_Tensor", TORCH_FN(set_source_Tensor));
  library->impl("set_", TORCH_FN(set_));
  library->impl("record_stream", TORCH_FN(record_stream));
  library->impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
}

}  // namespace torch_fl
