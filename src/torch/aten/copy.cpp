// SPDX-License-Identifier: Apache-2.0
// Copies that a routed copy_ cannot do: dense ones for the device's queue (copy.h), and sparse tensors that cross the border of
// the device, whose members must move, not be aliased (a CPU tensor would otherwise hold device memory).
#include "torch/aten/copy.h"

#include <ATen/ATen.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "router/counters.h"
#include "runtime/pinned.h"
#include "runtime/runtime.h"
#include "torch/aten/register.h"
#include "torch/device/errors.h"
#include "torch/device/owner.h"
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

template <bool kCompressed>
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
  RunRouted(*record, kCompressed ? ActiveTarget().sparse_csr : ActiveTarget().sparse, stack);
}

int SideOf(const at::Tensor& tensor) {
  return tensor.device().type() == kFlagos ? tensor.device().index() : FLAGOS_HOST;
}

// Same bytes in the same order: one copy of `nbytes` moves all of it.
bool SameDenseLayout(const at::Tensor& self, const at::Tensor& source) {
  return self.scalar_type() == source.scalar_type() && self.sizes() == source.sizes() &&
         self.strides() == source.strides() && self.is_non_overlapping_and_dense();
}

void CopyBytes(const at::Tensor& self, const at::Tensor& source, bool async) {
  Translate([&] {
    runtime::Copy(self.mutable_data_ptr(), SideOf(self), source.const_data_ptr(), SideOf(source), self.nbytes(), async);
  });
}

}  // namespace

bool MayCopyDirectly(const at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  // Another backend's copies know its streams and its pinned memory.
  return !Delegated() && (non_blocking || self.device() != source.device() || !runtime::HostView());
}

bool CopyDirectly(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const int to = SideOf(self);
  const int from = SideOf(source);
  const bool host_side = to == FLAGOS_HOST || from == FLAGOS_HOST;
  if (host_side && !(to == FLAGOS_HOST ? self : source).is_cpu()) return false;  // meta, another backend
  if (self.layout() != at::kStrided || source.layout() != at::kStrided) return false;
  if (self.is_conj() || self.is_neg() || self.numel() == 0) return false;
  if (self.is_quantized() || source.is_quantized()) return false;
  if (runtime::HostView()) {
    // A kernel on the host view does it sooner, except where the caller wants to go on meanwhile.
    const bool peer = !host_side && to != from;
    const bool overlapped =
        host_side && non_blocking && runtime::IsPinned((to == FLAGOS_HOST ? self : source).const_data_ptr());
    if (!peer && !overlapped) return false;
  } else if (to == from && (source.is_conj() || source.is_neg() || !SameDenseLayout(self, source))) {
    return false;  // needs a kernel
  }
  Translate([] { runtime::CheckAttention("aten::copy_"); });
  static router::Counter* const counter = router::GetCounter("aten::copy_", "native");
  counter->Add();

  at::Tensor ready = source.sizes() == self.sizes() ? source : source.expand_as(self);
  ready = ready.resolve_conj().resolve_neg();
  if (SameDenseLayout(self, ready)) {
    CopyBytes(self, ready, non_blocking);
    return true;
  }
  ready = ready.to(self.scalar_type()).contiguous();
  if (self.is_contiguous()) {
    CopyBytes(self, ready, non_blocking);
    return true;
  }
  // Lands in one piece on the other side and is laid out there; on the host only once it has arrived.
  const at::Tensor landed = at::empty(self.sizes(), self.options().memory_format(at::MemoryFormat::Contiguous));
  CopyBytes(landed, ready, non_blocking && to != FLAGOS_HOST);
  self.copy_(landed);
  return true;
}

void RegisterCopies() {
  static auto* sparse =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  sparse->impl("copy_", torch::CppFunction::makeFromBoxedFunction<&SparseCopy</*kCompressed=*/false>>());
  static auto* compressed =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::SparseCsrPrivateUse1, __FILE__, __LINE__);
  compressed->impl("copy_", torch::CppFunction::makeFromBoxedFunction<&SparseCopy</*kCompressed=*/true>>());
}

}  // namespace torch_fl
