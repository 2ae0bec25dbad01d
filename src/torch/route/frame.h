// SPDX-License-Identifier: Apache-2.0
// One routed call: arguments become target tensors on the way in, results become flagos tensors on the way out.
//
// Rules (docs/aliasing.md): the same tensor twice gives the same alias; a returned alias is the original tensor; a result that
// shares an argument's bytes is re-seated on the argument's storage and regains its autograd keys; a fresh result is adopted; a
// written argument gets its resized storage, sizes, strides and version back; CPU arguments and their views stay on the CPU.
//
// With `staging` every storage is replaced by a CPU copy that is written back afterwards: the copying CPU fallback is this same
// frame, so that it obeys the same rules.
//
// Threads: a Frame belongs to one call on one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "torch/route/op_record.h"
#include "torch/route/target.h"

namespace torch_fl {

class FlagosStorage;

class Frame {
 public:
  Frame(OpRecord& op, bool staging) : op_(op), staging_(staging), target_(staging ? CpuTarget() : ActiveTarget()) {}
  ~Frame();
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  // -- In: argument `position` of the schema. Returns the tensor that the kernel gets.
  at::Tensor MapIn(const at::Tensor& tensor, size_t position);
  c10::Storage MapIn(const c10::Storage& storage);
  // A `device=` argument: remembered, and replaced by the target's device.
  c10::Device MapIn(c10::Device device);

  // Checks that all arguments live together and fixes the device of the call. After the last MapIn.
  void SettleDevice();
  c10::DeviceIndex device() const { return device_; }
  const Target& target() const { return target_; }
  // After a kernel of another backend threw: says so in torch's words if the reason was a CPU tensor beside flagos ones.
  void RaiseIfDevicesWereMixed(const char* what) const;
  // CPU tensors came in, but no flagos tensor and no flagos `device=`.
  bool OnlyCpuArguments() const { return entries_.empty() && device_arg_ == -1 && !cpu_arguments_.empty(); }

  // -- Out, after the kernel: written arguments first, then each result.
  void WriteBack();
  at::Tensor MapOut(at::Tensor result, size_t position);
  // -- Order. For a device that asks for it (runtime::kAttentionKernels): what the kernel touched is remembered from here on ...
  void TrackAccesses() { tracks_ = true; }
  // ... and reported after the last MapOut, so that the kernel gets its place in the stream's order. Throws when it raced. Waits
  // for the stream where the operator hands values to the host, as on a GPU.
  void ReportKernel();
  // Results still to be mapped; they may share a fresh storage with the one being mapped.
  void SetPending(at::ArrayRef<at::Tensor> pending) { pending_ = pending; }

  // Bytes that a staging frame moved, and results that could not be adopted in place.
  uint64_t copied_bytes() const { return copied_bytes_; }
  uint64_t copied_results() const { return copied_results_; }

  // For sparse layouts, whose members are mapped one by one (sparse/).
  at::Tensor MapMemberIn(const at::Tensor& member, bool written);
  at::Tensor MapMemberOut(at::Tensor member);
  c10::Device flagos_device() const { return {c10::DeviceType::PrivateUse1, device_}; }

 private:
  struct Entry {
    at::Tensor outer;
    at::Tensor alias;
    bool written;
    uint32_t seen_version;  // version of the alias already carried to the outer tensor
  };
  struct Staged {
    c10::Storage outer;
    c10::intrusive_ptr<c10::StorageImpl> copy;
  };

  at::Tensor AliasOf(const at::Tensor& tensor, bool written);
  Entry* FindByOuter(const c10::TensorImpl* outer);
  Entry* FindByAlias(const c10::TensorImpl* alias);
  // The flagos storage whose target side is `storage`, and the entry it came from (may be null); null if none.
  c10::Storage FindOuterStorage(const c10::StorageImpl* storage, const Entry** entry);
  c10::intrusive_ptr<c10::StorageImpl> StageIn(const at::Tensor& tensor);
  c10::intrusive_ptr<c10::StorageImpl> TargetStorage(const at::Tensor& tensor);
  void StageOut(const Entry& entry);
  void WriteBackStrided(Entry& entry);
  // A flagos storage with the bytes of a fresh target storage: adopted in place when nobody else holds it and the bytes lie in
  // the device's pool, else copied and counted. `holders`: references that results of this call account for.
  c10::Storage Adopt(const c10::Storage& fresh, size_t holders);
  at::Tensor KeepOnCpu(at::Tensor result);
  size_t PendingSharers(const c10::StorageImpl* storage) const;
  void Seat(c10::TensorImpl* impl, c10::Storage storage) const;
  bool IsCpuArgument(const c10::StorageImpl* storage) const;

  OpRecord& op_;
  const bool staging_;
  const Target& target_;  // whose tensors the kernel gets
  bool tracks_ = false;
  bool wrote_back_ = false;
  c10::DeviceIndex device_ = -1;  // of the first flagos tensor
  c10::DeviceIndex device_arg_ = -1;  // of `device=`; -2: `flagos` without an index
  c10::SmallVector<Entry, 6> entries_;
  std::unique_ptr<std::unordered_map<const c10::TensorImpl*, size_t>>
      index_;  // of entries_ by outer, once there are many
  c10::SmallVector<at::Tensor, 2> cpu_arguments_;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  // storage arguments: outer, target
  std::vector<Staged> staged_;
  std::vector<std::pair<c10::Storage, c10::Storage>> adopted_;  // fresh target storage, its flagos storage
  std::vector<at::Tensor> fresh_;  // results in storages of their own, when accesses are tracked
  at::Tensor offender_;  // first tensor that may not stand beside flagos ones
  size_t offender_position_ = 0;
  at::Tensor suspect_;  // first CPU tensor of which only the target's kernel knows whether it may stand there
  size_t suspect_position_ = 0;
  at::ArrayRef<at::Tensor> pending_;
  uint64_t copied_bytes_ = 0;
  uint64_t copied_results_ = 0;
};

}  // namespace torch_fl
