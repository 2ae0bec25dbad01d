// SPDX-License-Identifier: Apache-2.0
// Copies that a routed copy_ cannot do: sparse tensors that cross the border of the device, whose members must move, not be
// aliased (a CPU tensor would otherwise hold device memory); and dense copies on devices without a host view.
#include <ATen/ATen.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "runtime/runtime.h"
#include "torch/aten/register.h"
#include "torch/device/errors.h"
#include "torch/route/alias_route.h"
#include "torch/route/target.h"

namespace torch_fl {
namespace {

// The same sparse tensor with its members on `device`.
at::Tensor SparseOn(const at::Tensor& source, c10::Device device, bool non_blocking) {
  const auto options = source.options().device(device);
  const auto move = [&](const at::Tensor& member) { return member.to(device, non_blocking); };
  if (source.layout() == at::kSparse) {
    at::Tensor moved =
        at::_sparse_coo_tensor_unsafe(move(source._indices()), move(source._values()), source.sizes(), options);
    return moved._coalesced_(source.is_coalesced());
  }
  const bool by_row = source.layout() == at::kSparseCsr || source.layout() == at::kSparseBsr;
  return at::_sparse_compressed_tensor_unsafe(move(by_row ? source.crow_indices() : source.ccol_indices()),
                                              move(by_row ? source.col_indices() : source.row_indices()),
                                              move(source.values()), source.sizes(), options);
}

template <c10::DispatchKey kTargetKey>
void SparseCopy(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const size_t base = stack->size() - 3;
  const at::Tensor self = (*stack)[base].toTensor();
  const at::Tensor source = (*stack)[base + 1].toTensor();
  if (self.device() != source.device() && source.layout() != at::kStrided) {
    const at::Tensor moved = SparseOn(source, self.device(), (*stack)[base + 2].toBool());
    at::Tensor result = self;
    result.copy_(moved);
    stack->resize(base);
    stack->emplace_back(std::move(result));
    return;
  }
  static const std::shared_ptr<OpRecord> record = RecordOf(op);
  RunRouted(*record, kTargetKey, stack);
}

}  // namespace

void RegisterCopies() {
  static auto* sparse =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  sparse->impl("copy_", torch::CppFunction::makeFromBoxedFunction<&SparseCopy<c10::DispatchKey::SparseCPU>>());
  static auto* compressed =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::SparseCsrPrivateUse1, __FILE__, __LINE__);
  compressed->impl("copy_", torch::CppFunction::makeFromBoxedFunction<&SparseCopy<c10::DispatchKey::SparseCsrCPU>>());
}

}  // namespace torch_fl
