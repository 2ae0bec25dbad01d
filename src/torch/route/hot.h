// SPDX-License-Identifier: Apache-2.0
// The alias route without boxing, for overloads that programs call all the time. One template per C++ signature: it maps tensor
// arguments straight to published aliases and adopts fresh results. Whatever is not plain (other layouts, mixed devices, named
// tensors, logging, timing, forced routes) goes to the boxed route, which holds all the rules; this file holds none of its own.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "router/policy.h"
#include "runtime/runtime.h"
#include "torch/device/errors.h"
#include "torch/device/owner.h"
#include "torch/device/storage.h"
#include "torch/route/alias.h"
#include "torch/route/alias_route.h"
#include "torch/route/fallback.h"
#include "torch/route/frame.h"
#include "torch/route/registry.h"
#include "torch/route/scope.h"
#include "torch/route/target.h"
#include "torch/route/tensor_access.h"

namespace torch_fl::hot {

struct Call {
  c10::DeviceIndex device = -1;
  bool plain = true;  // cleared by the first argument that the boxed route must handle
  const bool cpu_scalars;  // OpRecord::cpu_scalars
};

// The alias of a plain flagos tensor: a published one where possible, else built into `own`. Null when it is not plain.
inline const at::Tensor* AliasFor(const at::Tensor& tensor, Call& call, at::Tensor& own) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (C10_UNLIKELY(!IsFlagos(impl))) {
    if (!tensor.defined()) return &tensor;
    if (call.cpu_scalars && impl->dim() == 0 && tensor.is_cpu()) return &tensor;
    return nullptr;
  }
  FlagosStorage* storage = AsFlagosStorage(StorageImplOf(impl));
  if (C10_UNLIKELY(storage == nullptr || impl->*TensorAccess::ExtraField() != nullptr || impl->is_wrapped_number()))
    return nullptr;
  if (call.device < 0) call.device = storage->device_index();
  if (C10_UNLIKELY(storage->device_index() != call.device || storage->Twin() == nullptr)) return nullptr;
  const c10::DispatchKeySet keys = ActiveTarget().ToTarget(impl->key_set());
  if (const at::Tensor* published = storage->FindAlias(impl, keys)) return published;
  own = BuildAlias(impl, storage->TwinRef(), keys);
  if (const at::Tensor* published = storage->PublishAlias(std::move(own))) return published;
  return &own;
}

template <class T>
struct Init {
  T&& value;
  Call& call;
};

// What stands for one argument during the call. Built in place and never moved: an alias may point into it.
struct Pinned {
  Pinned() = default;
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
};

template <class T>
struct Argument : Pinned {  // anything without a tensor in it
  T value;
  Argument(Init<T> init) : value(std::forward<T>(init.value)) {}
  T get() { return std::forward<T>(value); }
  void MapInto(Frame&, size_t) {}
};

template <>
struct Argument<const at::Tensor&> : Pinned {
  const at::Tensor& outer;
  at::Tensor own;
  const at::Tensor* alias;
  Argument(Init<const at::Tensor&> init) : outer(init.value), alias(AliasFor(outer, init.call, own)) {
    if (alias == nullptr) init.call.plain = false;
  }
  const at::Tensor& get() { return *alias; }
  void MapInto(Frame& frame, size_t position) { frame.MapIn(outer, position); }
};

// `self` of an in-place operator that never resizes it. The layer above bumps its version.
template <>
struct Argument<at::Tensor&> : Pinned {
  at::Tensor& outer;
  at::Tensor alias;
  Argument(Init<at::Tensor&> init) : outer(init.value) {
    at::Tensor own;
    const at::Tensor* found = IsFlagos(outer.unsafeGetTensorImpl()) ? AliasFor(outer, init.call, own) : nullptr;
    if (found == nullptr) {
      init.call.plain = false;
    } else {
      alias = *found;
    }
  }
  at::Tensor& get() { return alias; }
  void MapInto(Frame& frame, size_t position) { frame.MapIn(outer, position); }
};

template <>
struct Argument<const std::optional<at::Tensor>&> : Pinned {
  const std::optional<at::Tensor>& outer;
  std::optional<at::Tensor> alias;
  Argument(Init<const std::optional<at::Tensor>&> init) : outer(init.value) {
    if (!outer) return;
    at::Tensor own;
    const at::Tensor* found = AliasFor(*outer, init.call, own);
    if (found == nullptr) {
      init.call.plain = false;
    } else {
      alias = *found;
    }
  }
  const std::optional<at::Tensor>& get() { return alias; }
  void MapInto(Frame& frame, size_t position) {
    if (outer) frame.MapIn(*outer, position);
  }
};

template <>
struct Argument<const at::ITensorListRef&> : Pinned {
  const at::ITensorListRef& outer;
  c10::SmallVector<at::Tensor, 8> aliases;
  at::ITensorListRef list;
  Argument(Init<const at::ITensorListRef&> init) : outer(init.value) {
    for (const at::Tensor& tensor : outer) {
      at::Tensor own;
      const at::Tensor* found = AliasFor(tensor, init.call, own);
      if (found == nullptr) {
        init.call.plain = false;
        return;
      }
      aliases.push_back(*found);
    }
    list = at::ITensorListRef(at::TensorList(aliases.data(), aliases.size()));
  }
  const at::ITensorListRef& get() { return list; }
  void MapInto(Frame& frame, size_t position) {
    for (const at::Tensor& tensor : outer) frame.MapIn(tensor, position);
  }
};

// A list; in the operators that return nothing it may be written to. Those have no layer above that bumps versions: the kernel
// bumps the aliases', and the difference is carried to the caller's tensors.
template <>
struct Argument<at::TensorList> : Pinned {
  const at::TensorList outer;
  c10::SmallVector<at::Tensor, 8> aliases;
  c10::SmallVector<uint32_t, 8> versions;
  Argument(Init<at::TensorList> init) : outer(init.value) {
    aliases.reserve(outer.size());
    for (const at::Tensor& tensor : outer) {
      at::Tensor own;
      const at::Tensor* found = tensor.defined() ? AliasFor(tensor, init.call, own) : nullptr;
      if (found == nullptr || !IsFlagos(tensor.unsafeGetTensorImpl())) {
        init.call.plain = false;
        return;
      }
      aliases.push_back(*found);
    }
  }
  at::TensorList get() { return {aliases.data(), aliases.size()}; }
  void MapInto(Frame& frame, size_t position) {
    for (const at::Tensor& tensor : outer) frame.MapIn(tensor, position);
  }
  void RememberVersions() {
    versions.reserve(aliases.size());
    for (const at::Tensor& alias : aliases) versions.push_back(AliasVersion(alias.unsafeGetTensorImpl()));
  }
  void CarryVersions() {
    for (size_t i = 0; i < aliases.size(); ++i)
      for (uint32_t seen = versions[i]; seen < AliasVersion(aliases[i].unsafeGetTensorImpl()); ++seen)
        outer[i].unsafeGetTensorImpl()->bump_version();
  }
};

template <class T>
void RememberVersions(Argument<T>& argument, bool written) {
  if constexpr (std::is_same_v<T, at::TensorList>) {
    if (written) argument.RememberVersions();
  }
}
template <class T>
void CarryVersions(Argument<T>& argument, bool written) {
  if constexpr (std::is_same_v<T, at::TensorList>) {
    if (written) argument.CarryVersions();
  }
}

template <class T>
struct IsTuple : std::false_type {};
template <class... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};

template <class Op, class Signature = typename Op::schema>
struct Kernel;

template <class Op, class R, class... A>
struct Kernel<Op, R(A...)> {
  static inline OpRecord* record = nullptr;
  static inline c10::BoxedKernel* boxed = nullptr;

  static void Bind(std::shared_ptr<OpRecord> shared) {
    record = shared.get();
    boxed = new c10::BoxedKernel(
        c10::BoxedKernel::makeFromFunctor(std::make_unique<RoutedKernel>(std::move(shared), ActiveTarget().dense)));
  }

  static bool NeedsBoxedRoute() {
    return router::g_log_dispatch.load(std::memory_order_relaxed) || router::g_timing.load(std::memory_order_relaxed) ||
           StagingMode() != Staging::kNever || runtime::KernelsAreOrdered();
  }

  static R Run(A... args) {
    Call call{.cpu_scalars = record->cpu_scalars};
    if (C10_UNLIKELY(RoutesMayBeStale())) RescanPending();
    if (C10_UNLIKELY(NeedsBoxedRoute())) return RunBoxed(std::forward<A>(args)...);
    std::tuple<Argument<A>...> mapped(Init<A>{std::forward<A>(args), call}...);
    if (C10_UNLIKELY(!call.plain || call.device < 0)) return RunBoxed(std::forward<A>(args)...);
    return RunPlain(call, mapped, std::forward_as_tuple(args...), std::index_sequence_for<A...>{});
  }

 private:
  static C10_NOINLINE R RunBoxed(A... args) {
    return c10::impl::BoxedKernelWrapper<R(A...)>::call(
        *boxed, record->handle, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), std::forward<A>(args)...);
  }

  template <class Mapped, class Given, size_t... I>
  static R RunPlain(Call& call, Mapped& mapped, Given&& given, std::index_sequence<I...>) {
    runtime::CheckAttention(record->name.c_str());
    record->alias_counter->Add();
    if (!Delegated()) runtime::KernelBegin(call.device);
    std::optional<RouteScope> scope;  // for the CPU's allocator; another backend's knows its device
    if (!Delegated()) scope.emplace(call.device, record->name.c_str());
    const c10::DispatchKeySet keys(ActiveTarget().dense);
    if constexpr (std::is_void_v<R>) {
      (RememberVersions(std::get<I>(mapped), record->args[I].written), ...);
      Op::redispatch(keys, std::get<I>(mapped).get()...);
      (CarryVersions(std::get<I>(mapped), record->args[I].written), ...);
    } else if constexpr (std::is_same_v<R, std::vector<at::Tensor>>) {
      R results = Op::redispatch(keys, std::get<I>(mapped).get()...);
      for (at::Tensor& result : results)
        if (C10_UNLIKELY(!AdoptInPlace(result, call.device)))
          MapUnusual(mapped, result, 0, std::index_sequence<I...>{});
      return results;
    } else if constexpr (std::is_reference_v<R>) {
      Op::redispatch(keys, std::get<I>(mapped).get()...);
      return std::get<0>(given);  // in-place operators return self
    } else if constexpr (std::is_same_v<R, at::Tensor>) {
      at::Tensor result = Op::redispatch(keys, std::get<I>(mapped).get()...);
      if (C10_UNLIKELY(!AdoptInPlace(result, call.device))) MapUnusual(mapped, result, 0, std::index_sequence<I...>{});
      return result;
    } else {
      static_assert(IsTuple<R>::value, "a hot operator returns tensors, self or nothing");
      R results = Op::redispatch(keys, std::get<I>(mapped).get()...);
      size_t position = 0;
      std::apply(
          [&](auto&... result) {
            ((C10_UNLIKELY(result.defined() && !AdoptInPlace(result, call.device))
                  ? MapUnusual(mapped, result, position++, std::index_sequence<I...>{})
                  : void(position++)),
             ...);
          },
          results);
      return results;
    }
  }

  // A result that is not fresh and unique: the frame's rules, with the same published aliases.
  template <class Mapped, size_t... I>
  static C10_NOINLINE void MapUnusual(Mapped& mapped, at::Tensor& result, size_t position, std::index_sequence<I...>) {
    Frame frame(*record, /*staging=*/false);
    (std::get<I>(mapped).MapInto(frame, I), ...);
    frame.SettleDevice();
    result = frame.MapOut(std::move(result), position);
    if (frame.copied_bytes() != 0) {
      record->alias_counter->copied_bytes.fetch_add(frame.copied_bytes(), std::memory_order_relaxed);
      record->alias_counter->copied_results.fetch_add(frame.copied_results(), std::memory_order_relaxed);
    }
  }
};

// Registers `kFunction` for `Op`, the hot kernel or something round it, if the target has a kernel. Returns its handle, or nothing.
template <class Op, auto kFunction = &Kernel<Op>::Run>
std::optional<c10::RegistrationHandleRAII> Register() {
  auto op = c10::Dispatcher::singleton().findSchema({Op::name, Op::overload_name});
  if (!op || !HasTargetRoute(*op) || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return {};
  Kernel<Op>::Bind(RecordOf(*op));
  return c10::Dispatcher::singleton().registerImpl(
      op->operator_name(), c10::DispatchKey::PrivateUse1,
      c10::KernelFunction::makeFromUnboxedFunction(c10::CompileTimeFunctionPointer<typename Op::schema, kFunction>()),
      c10::impl::CppSignature::make<typename Op::schema>(), nullptr, "torch_fl hot route");
}

}  // namespace torch_fl::hot
