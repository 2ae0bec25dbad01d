// SPDX-License-Identifier: Apache-2.0
// Factories: where flagos tensors come from when no kernel made them.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <torch/library.h>

#include "runtime/runtime.h"
#include "torch/aten/register.h"
#include "torch/device/errors.h"
#include "torch/device/owner.h"
#include "torch/device/storage.h"

namespace torch_fl {
namespace {

constexpr c10::DispatchKeySet kDense(c10::DispatchKey::PrivateUse1);

// The device of a `device=` argument; the current one when it has no index.
c10::DeviceIndex FactoryDevice(const char* op, std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  Translate([&] { runtime::CheckAttention(op); });
  TORCH_CHECK(!pin_memory.value_or(false), op, ": only dense CPU tensors can be pinned");
  const int index = device && device->has_index() ? device->index() : ActiveOwner().CurrentDevice();
  ActiveOwner().CheckDevice(index, op);
  return static_cast<c10::DeviceIndex>(index);
}

// ATen's empty_generic makes a plain StorageImpl, without asking the device's storage factory, so the tensor is built here.
at::Tensor NewTensor(size_t nbytes, at::ScalarType dtype, c10::DeviceIndex device, const char* op) {
  c10::Storage storage(MakeFlagosStorage(nbytes, device, op));
  return at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kDense, c10::scalarTypeToTypeMeta(dtype));
}

at::Tensor FillIfDeterministic(at::Tensor tensor) {
  // See torch.utils.deterministic.fill_uninitialized_memory.
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory()))
    at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

at::Tensor empty_memory_format(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> layout, std::optional<at::Device> device,
                               std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format) {
  constexpr const char* kOp = "aten::empty";
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == at::kStrided, "empty: layout ", *layout,
                              " is not supported on flagos");
  at::detail::check_size_nonnegative(size);
  const at::ScalarType type = c10::dtype_or_default(dtype);
  const size_t nbytes = at::detail::computeStorageNbytesContiguous(size, c10::elementSize(type));
  at::Tensor tensor = NewTensor(nbytes, type, FactoryDevice(kOp, device, pin_memory), kOp);
  if (size.size() != 1 || size[0] != 0) tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  // Contiguous strides are set already; anything else restrides.
  if (memory_format.value_or(at::MemoryFormat::Contiguous) != at::MemoryFormat::Contiguous)
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  return FillIfDeterministic(std::move(tensor));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device,
                         std::optional<bool> pin_memory) {
  constexpr const char* kOp = "aten::empty_strided";
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == at::kStrided, "empty_strided: layout ", *layout,
                              " is not supported on flagos");
  at::detail::check_size_nonnegative(size);
  TORCH_CHECK(size.size() == stride.size(), "mismatch in length of strides and shape");
  const at::ScalarType type = c10::dtype_or_default(dtype);
  const size_t nbytes = at::detail::computeStorageNbytes(size, stride, c10::elementSize(type));
  at::Tensor tensor = NewTensor(nbytes, type, FactoryDevice(kOp, device, pin_memory), kOp);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return FillIfDeterministic(std::move(tensor));
}

}  // namespace

void RegisterFactories() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("empty.memory_format", TORCH_FN(empty_memory_format));
  library->impl("empty_strided", TORCH_FN(empty_strided));
}

}  // namespace torch_fl
