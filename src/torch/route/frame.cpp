// SPDX-License-Identifier: Apache-2.0
#include "torch/route/frame.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "runtime/runtime.h"
#include "torch/device/allocator.h"
#include "torch/device/errors.h"
#include "torch/device/owner.h"
#include "torch/device/storage.h"
#include "torch/route/alias.h"
#include "torch/route/device_check.h"
#include "torch/route/target.h"
#include "torch/route/tensor_access.h"
#include "torch/sparse/sparse_alias.h"

namespace torch_fl {
namespace {

constexpr size_t kIndexFrom = 24;  // from here a hash map beats a linear search (foreach over hundreds of tensors)

struct ByteRange {
  size_t begin, end;
};

// Bytes of its storage that a strided tensor can touch.
ByteRange CoveringRange(const c10::TensorImpl* impl) {
  if (impl->numel() == 0) return {0, 0};
  const size_t item = impl->dtype().itemsize();
  int64_t last = impl->storage_offset();
  for (int64_t i = 0; i < impl->dim(); ++i) last += (impl->size(i) - 1) * impl->stride(i);
  return {static_cast<size_t>(impl->storage_offset()) * item, (static_cast<size_t>(last) + 1) * item};
}

// Without Tensor::set_requires_grad, which refuses tensors that lack autograd keys, as aliases do.
void CarryRequiresGrad(const at::Tensor& alias) {
  c10::TensorImpl* impl = alias.unsafeGetTensorImpl();
  auto meta = c10::impl::GetAutogradMetaFactory()->make();
  meta->set_requires_grad(true, impl);
  impl->set_autograd_meta(std::move(meta));
}

const std::string& ArgumentName(const OpRecord& op, size_t position) {
  return op.handle.schema().arguments().at(position).name();
}

}  // namespace

Frame::~Frame() {
  // A kernel that threw may have resized a written argument first: leave no stale pointer behind.
  if (wrote_back_ || staging_) return;
  for (Entry& entry : entries_)
    if (entry.written && entry.outer.has_storage())
      if (FlagosStorage* storage = AsFlagosStorage(StorageImplOf(entry.outer.unsafeGetTensorImpl()))) storage->Twin();
}

// ---- In --------------------------------------------------------------------------------------------------------------------

at::Tensor Frame::MapIn(const at::Tensor& tensor, size_t position) {
  if (!tensor.defined()) return tensor;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (C10_LIKELY(IsFlagos(impl))) {
    const c10::DeviceIndex index = impl->device().index();
    if (device_ < 0) {
      device_ = index;
    } else if (C10_UNLIKELY(index != device_) && !op_.args[position].cpu_free && !offender_.defined()) {
      offender_ = tensor;
      offender_position_ = position;
    }
    return AliasOf(tensor, op_.args[position].written);
  }
  if (Delegated() && !staging_ && tensor.is_cpu()) {
    // The kernel sees this tensor beside ones of its own device, and checks.
    if (!suspect_.defined()) {
      suspect_ = tensor;
      suspect_position_ = position;
    }
    cpu_arguments_.push_back(tensor);
    return tensor;
  }
  const bool scalar = impl->dim() == 0 && (op_.cpu_scalars || impl->is_wrapped_number()) && !op_.args[position].written;
  if (!op_.args[position].cpu_free && !(scalar && tensor.is_cpu()) && !offender_.defined()) {
    offender_ = tensor;
    offender_position_ = position;
  }
  cpu_arguments_.push_back(tensor);
  return tensor;
}

c10::Storage Frame::MapIn(const c10::Storage& storage) {
  if (!storage || storage.device().type() != kFlagos) return storage;
  if (device_ < 0) device_ = storage.device().index();
  FlagosStorage* flagos = AsFlagosStorage(storage.unsafeGetStorageImpl());
  c10::Storage target(flagos != nullptr ? flagos->TwinRef() : TwinOfForeignStorage(storage));
  storages_.emplace_back(storage, target);
  return target;
}

c10::Device Frame::MapIn(c10::Device device) {
  if (device.type() != kFlagos) return device;
  device_arg_ = device.has_index() ? device.index() : static_cast<c10::DeviceIndex>(-2);
  return target_.DeviceFor(static_cast<c10::DeviceIndex>(device.has_index() ? device.index()
                                                         : Delegated()      ? ActiveOwner().CurrentDevice()
                                                                            : 0));
}

void Frame::SettleDevice() {
  if (C10_UNLIKELY(offender_.defined()) && device_ >= 0)
    RaiseMixedDevices(op_.name, ArgumentName(op_, offender_position_), offender_, flagos_device(), op_.cpu_scalars);
  if (device_arg_ >= 0) {
    ActiveOwner().CheckDevice(device_arg_, op_.name.c_str());
    device_ = device_arg_;
  } else if (device_ < 0) {
    device_ = static_cast<c10::DeviceIndex>(ActiveOwner().CurrentDevice());
    ActiveOwner().CheckDevice(device_, op_.name.c_str());
  }
}

void Frame::RaiseIfDevicesWereMixed(const char* what) const {
  if (!suspect_.defined() || device_ < 0 || std::string_view(what).find("device") == std::string_view::npos) return;
  RaiseMixedDevices(op_.name, ArgumentName(op_, suspect_position_), suspect_, flagos_device(), op_.cpu_scalars);
}

Frame::Entry* Frame::FindByOuter(const c10::TensorImpl* outer) {
  if (index_) {
    auto found = index_->find(outer);
    return found == index_->end() ? nullptr : &entries_[found->second];
  }
  for (Entry& entry : entries_)
    if (entry.outer.unsafeGetTensorImpl() == outer) return &entry;
  return nullptr;
}

Frame::Entry* Frame::FindByAlias(const c10::TensorImpl* alias) {
  for (Entry& entry : entries_)
    if (entry.alias.unsafeGetTensorImpl() == alias) return &entry;
  return nullptr;
}

at::Tensor Frame::AliasOf(const at::Tensor& tensor, bool written) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (Entry* entry = FindByOuter(impl)) return entry->alias;
  at::Tensor alias;
  if (C10_UNLIKELY(impl->layout() != c10::kStrided)) {
    alias = MapSparseIn(*this, tensor, written);
  } else {
    const c10::DispatchKeySet keys = target_.ToTarget(impl->key_set());
    FlagosStorage* storage = AsFlagosStorage(StorageImplOf(impl));
    // A written argument may be resized or re-seated by the kernel, so its alias is private to the call.
    const bool shareable = !staging_ && !written && !op_.asks_requires_grad && storage != nullptr &&
                           !impl->is_wrapped_number() && impl->*TensorAccess::ExtraField() == nullptr;
    if (shareable) {
      storage->Twin();
      if (const at::Tensor* published = storage->FindAlias(impl, keys)) alias = *published;
    }
    if (!alias.defined()) {
      alias = BuildAlias(impl, staging_ ? StageIn(tensor) : TargetStorage(tensor), keys);
      if (shareable) {
        at::Tensor copy = alias;
        storage->PublishAlias(std::move(copy));
      }
    }
  }
  if (C10_UNLIKELY(op_.asks_requires_grad) && tensor.requires_grad()) CarryRequiresGrad(alias);
  entries_.push_back({tensor, alias, written, 0});
  if (index_) {
    index_->emplace(impl, entries_.size() - 1);
  } else if (entries_.size() == kIndexFrom) {
    index_ = std::make_unique<std::unordered_map<const c10::TensorImpl*, size_t>>();
    for (size_t i = 0; i < entries_.size(); ++i) index_->emplace(entries_[i].outer.unsafeGetTensorImpl(), i);
  }
  return alias;
}

c10::intrusive_ptr<c10::StorageImpl> Frame::TargetStorage(const at::Tensor& tensor) {
  const c10::Storage& storage = StorageOf(tensor.unsafeGetTensorImpl());
  if (FlagosStorage* flagos = AsFlagosStorage(storage.unsafeGetStorageImpl())) return flagos->TwinRef();
  // Arguments that share a foreign storage share its twin too, or overlap would go unseen.
  for (const auto& [outer, target] : storages_)
    if (outer.is_alias_of(storage)) return target.getWeakStorageImpl().lock();
  c10::intrusive_ptr<c10::StorageImpl> twin = TwinOfForeignStorage(storage);
  storages_.emplace_back(storage, c10::Storage(twin));
  return twin;
}

// ---- Staging -----------------------------------------------------------------------------------------------------------------

c10::intrusive_ptr<c10::StorageImpl> Frame::StageIn(const at::Tensor& tensor) {
  const c10::Storage& storage = StorageOf(tensor.unsafeGetTensorImpl());
  c10::intrusive_ptr<c10::StorageImpl> copy;
  for (const Staged& staged : staged_)
    if (staged.outer.is_alias_of(storage)) copy = staged.copy;
  if (!copy) {
    // The whole storage is reserved, so that views keep their offsets; only the bytes an argument covers are moved.
    copy = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                 c10::SymInt(static_cast<int64_t>(storage.nbytes())),
                                                 c10::GetCPUAllocator(),
                                                 /*resizable=*/true);
    staged_.push_back({storage, copy});
  }
  const ByteRange range = CoveringRange(tensor.unsafeGetTensorImpl());
  if (range.end > range.begin) {
    const size_t size = range.end - range.begin;
    auto* from =
        static_cast<const char*>(storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()) + range.begin;
    ActiveOwner().Copy(static_cast<char*>(copy->mutable_data()) + range.begin, FLAGOS_HOST, from,
                       storage.device().index(), size);
    copied_bytes_ += size;
  }
  return copy;
}

void Frame::StageOut(const Entry& entry) {
  const c10::TensorImpl* alias = entry.alias.unsafeGetTensorImpl();
  c10::StorageImpl* copy = StorageImplOf(alias);
  const c10::Storage& outer = StorageOf(entry.outer.unsafeGetTensorImpl());
  if (outer.nbytes() != copy->nbytes()) ResizeFlagosStorage(outer, copy->nbytes());
  const ByteRange range = CoveringRange(alias);
  if (range.end <= range.begin) return;
  const size_t size = range.end - range.begin;
  auto* to = static_cast<char*>(outer.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()) + range.begin;
  ActiveOwner().Copy(to, outer.device().index(), static_cast<const char*>(copy->data()) + range.begin, FLAGOS_HOST,
                     size);
  copied_bytes_ += size;
}

// ---- Written arguments ---------------------------------------------------------------------------------------------------------

void Frame::WriteBack() {
  wrote_back_ = true;
  for (size_t i = 0; i < entries_.size(); ++i) {  // by index: sparse members may add entries
    if (!entries_[i].written) continue;
    if (entries_[i].outer.layout() == c10::kStrided) {
      WriteBackStrided(entries_[i]);
    } else {
      const Entry entry = entries_[i];
      WriteBackSparse(*this, entry.outer, entry.alias);
    }
  }
}

void Frame::WriteBackStrided(Entry& entry) {
  c10::TensorImpl* outer = entry.outer.unsafeGetTensorImpl();
  const c10::TensorImpl* alias = entry.alias.unsafeGetTensorImpl();
  c10::StorageImpl* target = StorageImplOf(alias);
  FlagosStorage* storage = AsFlagosStorage(StorageImplOf(outer));
  if (staging_) {
    const bool staged =
        std::any_of(staged_.begin(), staged_.end(), [&](const Staged& s) { return s.copy.get() == target; });
    TORCH_CHECK(staged, op_.name, ": the CPU fallback cannot give an argument another storage");
    StageOut(entry);
  } else if (storage != nullptr && storage->TwinIdentity() == target) {
    storage->Twin();  // follows a resize
  } else if (storage != nullptr) {
    // The kernel gave the argument another storage (set_).
    const Entry* from = nullptr;
    c10::Storage known = FindOuterStorage(target, &from);
    outer->set_storage_keep_dtype(known ? known : Adopt(StorageOf(alias), 1));
  }
  if (outer->sizes() != alias->sizes() || outer->strides() != alias->strides())
    outer->set_sizes_and_strides(alias->sizes(), alias->strides());
  if (outer->storage_offset() != alias->storage_offset()) outer->set_storage_offset(alias->storage_offset());
  // linalg_lu_solve.out answers in a conjugated view of what it wrote.
  if (entry.outer.is_conj() != entry.alias.is_conj()) entry.outer._set_conj(entry.alias.is_conj());
  if (entry.outer.is_neg() != entry.alias.is_neg()) entry.outer._set_neg(entry.alias.is_neg());
  for (const uint32_t version = AliasVersion(alias); entry.seen_version < version; ++entry.seen_version)
    outer->bump_version();
}

// ---- Results ---------------------------------------------------------------------------------------------------------------------

c10::Storage Frame::FindOuterStorage(const c10::StorageImpl* storage, const Entry** from) {
  for (Entry& entry : entries_) {
    if (!entry.alias.has_storage() || StorageImplOf(entry.alias.unsafeGetTensorImpl()) != storage) continue;
    *from = &entry;
    return StorageOf(entry.outer.unsafeGetTensorImpl());
  }
  for (const auto& [outer, target] : storages_)
    if (target.unsafeGetStorageImpl() == storage) return outer;
  for (const auto& [fresh, flagos] : adopted_)
    if (fresh.unsafeGetStorageImpl() == storage) return flagos;
  return {};
}

bool Frame::IsCpuArgument(const c10::StorageImpl* storage) const {
  return std::any_of(cpu_arguments_.begin(), cpu_arguments_.end(), [&](const at::Tensor& tensor) {
    return tensor.has_storage() && StorageImplOf(tensor.unsafeGetTensorImpl()) == storage;
  });
}

size_t Frame::PendingSharers(const c10::StorageImpl* storage) const {
  return static_cast<size_t>(std::count_if(pending_.begin(), pending_.end(), [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.has_storage() && StorageImplOf(tensor.unsafeGetTensorImpl()) == storage;
  }));
}

c10::Storage Frame::Adopt(const c10::Storage& fresh, size_t holders) {
  c10::StorageImpl* target = fresh.unsafeGetStorageImpl();
  const size_t nbytes = target->nbytes();
  void* bytes = target->_mutable_data_ptr_no_checks().get();
  const bool unique = fresh.use_count() <= holders;
  const bool pooled = !staging_ && IsDeviceMemory(*target, device_);
  // A target that owns the devices knows where its kernel put the result.
  const c10::DeviceIndex device = pooled && Delegated() ? fresh.device().index() : device_;
  if (C10_LIKELY(!staging_ && unique && pooled))
    return c10::Storage(c10::make_intrusive<FlagosStorage>(fresh.getWeakStorageImpl().lock(), device));
  c10::Storage copy(MakeFlagosStorage(nbytes, device, op_.name.c_str()));
  if (bytes != nullptr && nbytes > 0) {
    void* to = copy.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
    if (pooled && Delegated()) {
      ActiveOwner().Copy(to, device, bytes, device, nbytes);
    } else if (pooled) {
      // Already device memory, but shared with somebody who must not notice: a copy on the host view.
      std::memcpy(static_cast<char*>(to) + TargetOffset(device_), bytes, nbytes);
    } else {
      ActiveOwner().Copy(to, device, bytes, FLAGOS_HOST, nbytes);
    }
    copied_bytes_ += nbytes;
  }
  if (!staging_) ++copied_results_;
  return copy;
}

void Frame::Seat(c10::TensorImpl* impl, c10::Storage storage) const {
  const c10::Device device = storage.device();
  impl->*TensorAccess::StorageField() = std::move(storage);
  impl->*TensorAccess::DeviceField() = device;
  impl->*TensorAccess::KeySetField() = target_.ToFlagos(impl->key_set());
}

at::Tensor Frame::MapOut(at::Tensor result, size_t position) {
  if (!result.defined()) return result;
  if (position < 64 && C10_UNLIKELY((op_.keep_on_cpu.load(std::memory_order_relaxed) >> position) & 1))
    return KeepOnCpu(std::move(result));
  return MapMemberOut(std::move(result));
}

// A kernel's allocations inside a route are device memory; a tensor that stays on the CPU must not live there.
at::Tensor Frame::KeepOnCpu(at::Tensor result) {
  int owner = -1;
  if (Delegated() || !result.has_storage() || !OwnsTargetAddress(result.storage().data(), &owner)) return result;
  ++copied_results_;
  copied_bytes_ += result.storage().nbytes();
  return result.clone();
}

at::Tensor Frame::MapMemberIn(const at::Tensor& member, bool written) { return AliasOf(member, written); }

at::Tensor Frame::MapMemberOut(at::Tensor result) {
  if (!result.defined() || result.device().type() != target_.type) return result;
  c10::TensorImpl* impl = result.unsafeGetTensorImpl();
  if (C10_LIKELY(!staging_) && AdoptInPlace(result, device_)) {
    if (C10_UNLIKELY(tracks_)) fresh_.push_back(result);
    return result;
  }
  if (Entry* entry = FindByAlias(impl)) return entry->outer;  // the kernel returned an argument
  for (const at::Tensor& argument : cpu_arguments_)
    if (argument.is_same(result)) return result;
  if (impl->layout() != c10::kStrided) return MapSparseOut(*this, std::move(result));
  TORCH_CHECK(impl->has_storage(), op_.name, ": flagos has no tensors of the kind that this operator returned (",
              impl->key_set(), ")");
  c10::StorageImpl* target = StorageImplOf(impl);
  if (IsCpuArgument(target)) return result;  // a CPU argument, or a view of one

  const Entry* from = nullptr;
  c10::Storage seat = FindOuterStorage(target, &from);
  if (!seat) {
    // Fresh but shared: by other results of this call, which is fine, or by the kernel's owner, who must not notice.
    seat = Adopt(StorageOf(impl), result.use_count() > 1 ? 0 : 1 + PendingSharers(target));
    adopted_.emplace_back(StorageOf(impl), seat);
  }
  const bool fresh = from == nullptr;
  const bool was_inference = impl->is_inference();
  if (result.use_count() > 1) {
    // Somebody else holds this TensorImpl (a custom operator's cache): it stays as it is.
    auto copy =
        c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(seat), impl->key_set(), impl->dtype());
    TensorAccess::CopyMetadata(impl, copy.get());
    copy.get()->*TensorAccess::NumelField() = impl->*TensorAccess::NumelField();
    Seat(copy.get(), std::move(seat));
    result = at::Tensor(std::move(copy));
    impl = result.unsafeGetTensorImpl();
  } else {
    Seat(impl, std::move(seat));
  }
  if (from != nullptr && was_inference) {
    // A view of a normal tensor must be normal: autograd's as_view sets a version counter, which an inference tensor lacks.
    const c10::DispatchKeySet autograd = from->outer.key_set() & kAutogradKeys;
    if (!autograd.empty()) {
      impl->*TensorAccess::KeySetField() = impl->key_set() | autograd;
      impl->set_version_counter(c10::VariableVersion(0));
    }
  }
  if (C10_UNLIKELY(tracks_) && fresh) fresh_.push_back(result);
  return result;
}

// ---- Order -----------------------------------------------------------------------------------------------------------------------

void Frame::ReportKernel() {
  c10::SmallVector<flagos_access_t, 8> accesses;
  const auto add = [&](const at::Tensor& tensor, bool written) {
    if (tensor.layout() != c10::kStrided || !tensor.has_storage()) return;
    const ByteRange range = CoveringRange(tensor.unsafeGetTensorImpl());
    auto* base =
        static_cast<const char*>(StorageImplOf(tensor.unsafeGetTensorImpl())->_mutable_data_ptr_no_checks().get());
    if (base == nullptr || range.end <= range.begin) return;
    accesses.push_back({base + range.begin, range.end - range.begin, written ? 1 : 0});
  };
  for (const Entry& entry : entries_)
    if (entry.outer.device().index() == device_) add(entry.outer, entry.written);
  for (const at::Tensor& result : fresh_) add(result, /*written=*/true);
  Translate([&] {
    runtime::KernelEnd(device_, op_.name.c_str(), accesses.data(), accesses.size());
    if (op_.synchronizes || (op_.copies && !cpu_arguments_.empty()))
      runtime::SynchronizeStream(runtime::CurrentStream(device_));
  });
}

}  // namespace torch_fl
