// SPDX-License-Identifier: Apache-2.0
#include "torch/sparse/sparse_alias.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

#include <utility>

#include "torch/device/owner.h"
#include "torch/route/frame.h"
#include "torch/route/target.h"

namespace torch_fl {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

at::SparseTensorImpl* Coo(const at::Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}
at::SparseCsrTensorImpl* Compressed(const at::Tensor& tensor) {
  return static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
}

bool IsCompressed(c10::Layout layout) {
  return layout == c10::kSparseCsr || layout == c10::kSparseCsc || layout == c10::kSparseBsr ||
         layout == c10::kSparseBsc;
}

// SparseTensorImpl's constructor makes empty members on the current device of its type.
class CurrentDevice {
 public:
  explicit CurrentDevice(c10::DeviceIndex device) : previous_(ActiveOwner().ExchangeDevice(device)) {}
  ~CurrentDevice() { ActiveOwner().ExchangeDevice(previous_); }

 private:
  int previous_;
};

at::Tensor BuildCoo(DispatchKey key, const at::SparseTensorImpl* like, const at::Tensor& indices,
                    const at::Tensor& values) {
  auto tensor = at::detail::make_tensor<at::SparseTensorImpl>(DispatchKeySet(key), like->dtype());
  Coo(tensor)->raw_resize_(like->sparse_dim(), like->dense_dim(), like->sizes());
  Coo(tensor)->set_indices_and_values_unsafe(indices, values);
  Coo(tensor)->set_coalesced(like->coalesced());
  return tensor;
}

at::Tensor BuildCompressed(DispatchKey key, c10::Device device, const at::SparseCsrTensorImpl* like, c10::Layout layout,
                           const at::Tensor& compressed, const at::Tensor& plain, const at::Tensor& values) {
  auto tensor = at::detail::make_tensor<at::SparseCsrTensorImpl>(DispatchKeySet(key), device, layout, like->dtype());
  Compressed(tensor)->set_member_tensors(compressed, plain, values, like->sizes());
  return tensor;
}

}  // namespace

at::Tensor MapSparseIn(Frame& frame, const at::Tensor& tensor, bool written) {
  const c10::Layout layout = tensor.layout();
  if (layout == c10::kSparse) {
    const at::SparseTensorImpl* impl = Coo(tensor);
    return BuildCoo(frame.target().sparse, impl, frame.MapMemberIn(impl->indices(), written),
                    frame.MapMemberIn(impl->values(), written));
  }
  TORCH_CHECK_NOT_IMPLEMENTED(IsCompressed(layout), "flagos: tensors of layout ", layout, " are not supported");
  const at::SparseCsrTensorImpl* impl = Compressed(tensor);
  return BuildCompressed(frame.target().sparse_csr, frame.target().DeviceFor(tensor.device().index()), impl, layout,
                         frame.MapMemberIn(impl->compressed_indices(), written),
                         frame.MapMemberIn(impl->plain_indices(), written), frame.MapMemberIn(impl->values(), written));
}

at::Tensor MapSparseOut(Frame& frame, at::Tensor result) {
  const c10::Layout layout = result.layout();
  CurrentDevice current(frame.device());
  // The result keeps its members alive; without it they are unique and can be adopted in place.
  const bool unique = result.use_count() == 1;
  if (layout == c10::kSparse) {
    const at::SparseTensorImpl* impl = Coo(result);
    auto shape =
        at::detail::make_tensor<at::SparseTensorImpl>(DispatchKeySet(DispatchKey::SparsePrivateUse1), impl->dtype());
    Coo(shape)->raw_resize_(impl->sparse_dim(), impl->dense_dim(), impl->sizes());
    const bool coalesced = impl->coalesced();
    at::Tensor indices = impl->indices(), values = impl->values();
    if (unique) result.reset();
    indices = frame.MapMemberOut(std::move(indices));
    values = frame.MapMemberOut(std::move(values));
    Coo(shape)->set_indices_and_values_unsafe(indices, values);
    Coo(shape)->set_coalesced(coalesced);
    return shape;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(IsCompressed(layout), "flagos: an operator returned a tensor of layout ", layout,
                              ", which is not supported on this device");
  const at::SparseCsrTensorImpl* impl = Compressed(result);
  const auto dtype = impl->dtype();
  const std::vector<int64_t> sizes = impl->sizes().vec();
  at::Tensor compressed = impl->compressed_indices(), plain = impl->plain_indices(), values = impl->values();
  if (unique) result.reset();
  compressed = frame.MapMemberOut(std::move(compressed));
  plain = frame.MapMemberOut(std::move(plain));
  values = frame.MapMemberOut(std::move(values));
  auto tensor = at::detail::make_tensor<at::SparseCsrTensorImpl>(DispatchKeySet(DispatchKey::SparseCsrPrivateUse1),
                                                                 frame.flagos_device(), layout, dtype);
  Compressed(tensor)->set_member_tensors(compressed, plain, values, at::IntArrayRef(sizes));
  return tensor;
}

void WriteBackSparse(Frame& frame, const at::Tensor& outer, const at::Tensor& alias) {
  CurrentDevice current(frame.device());
  if (outer.layout() == c10::kSparse) {
    at::SparseTensorImpl* theirs = Coo(alias);
    at::Tensor indices = frame.MapMemberOut(std::move(theirs->indices_));
    at::Tensor values = frame.MapMemberOut(std::move(theirs->values_));
    at::SparseTensorImpl* ours = Coo(outer);
    if (ours->sparse_dim() != theirs->sparse_dim() || ours->dense_dim() != theirs->dense_dim() ||
        ours->sizes() != theirs->sizes())
      ours->raw_resize_(theirs->sparse_dim(), theirs->dense_dim(), theirs->sizes());
    ours->set_indices_and_values_unsafe(indices, values);
    ours->set_coalesced(theirs->coalesced());
    return;
  }
  const at::SparseCsrTensorImpl* theirs = Compressed(alias);
  at::Tensor compressed = frame.MapMemberOut(theirs->compressed_indices());
  at::Tensor plain = frame.MapMemberOut(theirs->plain_indices());
  at::Tensor values = frame.MapMemberOut(theirs->values());
  Compressed(outer)->set_member_tensors(compressed, plain, values, theirs->sizes());
}

}  // namespace torch_fl
