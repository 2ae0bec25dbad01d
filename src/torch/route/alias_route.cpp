// SPDX-License-Identifier: Apache-2.0
#include "torch/route/alias_route.h"

#include <ATen/core/List.h>

#include <chrono>
#include <optional>
#include <utility>

#include "router/policy.h"
#include "runtime/runtime.h"
#include "torch/device/errors.h"
#include "torch/device/generator.h"
#include "torch/device/owner.h"
#include "torch/route/fallback.h"
#include "torch/route/frame.h"
#include "torch/route/registry.h"
#include "torch/route/scope.h"
#include "torch/route/target.h"

namespace torch_fl {

__attribute__((tls_model("initial-exec"))) thread_local RouteState t_route{0, 0, nullptr};

namespace {

using c10::IValue;
using torch::jit::Stack;

uint64_t NowNs() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

void MapArgument(Frame& frame, const ArgRecord& record, size_t position, IValue& value) {
  switch (record.kind) {
    case ArgKind::kTensor:
      if (value.isTensor()) value = frame.MapIn(std::move(value).toTensor(), position);
      break;
    case ArgKind::kTensorList:
      if (value.isTensorList()) {
        c10::List<at::Tensor> mapped;
        const auto tensors = value.toTensorVector();
        mapped.reserve(tensors.size());
        for (const at::Tensor& tensor : tensors) mapped.push_back(frame.MapIn(tensor, position));
        value = std::move(mapped);
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> mapped;
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
          mapped.push_back(tensor ? std::optional<at::Tensor>(frame.MapIn(*tensor, position)) : std::nullopt);
        value = std::move(mapped);
      }
      break;
    case ArgKind::kDevice:
      if (value.isDevice()) value = frame.MapIn(value.toDevice());
      break;
    case ArgKind::kStorage:
      if (value.isStorage()) value = frame.MapIn(value.toStorage());
      break;
    case ArgKind::kGenerator:  // needs the call's device: MapGenerator
    case ArgKind::kOther:
      break;
  }
}

// Random numbers: the device's own generator stands in for None, so that a draw never advances the target's.
void MapGenerator(const OpRecord& op, const Frame& frame, IValue& value) {
  if (value.isNone()) {
    if (Delegated()) return;  // the target's default generator is ours too
    value = TargetGenerator(DefaultGenerator(frame.device()));
    return;
  }
  const at::Generator given = value.toGenerator();
  // A generator takes part in dispatch: one of ours brings a call on CPU tensors here.
  TORCH_CHECK(given.device().type() != kFlagos || !frame.OnlyCpuArguments(),
              "Expected a 'cpu' device type for generator but found '",
              c10::DeviceTypeName(kFlagos, /*lower_case=*/true), "' (", op.name, ")");
  TORCH_CHECK(given.device().type() == kFlagos, "Expected a '", c10::DeviceTypeName(kFlagos, /*lower_case=*/true),
              "' device type for generator but found '", given.device().type(), "' (", op.name, ")");
  TORCH_CHECK(given.device().index() == frame.device(), "Expected a generator on ", frame.flagos_device(),
              " but found one on ", given.device(), " (", op.name, ")");
  value = TargetGenerator(given);
}

// The CPU's key for what would run under a key of the target.
c10::DispatchKey StagingKey(c10::DispatchKey target_key) {
  const Target &target = ActiveTarget(), &cpu = CpuTarget();
  if (target_key == target.sparse) return cpu.sparse;
  return target_key == target.sparse_csr ? cpu.sparse_csr : cpu.dense;
}

void MapResults(Frame& frame, const OpRecord& op, Stack* stack) {
  const size_t count = op.handle.schema().returns().size();
  const size_t base = stack->size() - count;
  if (count == 1 && (*stack)[base].isTensor()) {
    IValue& value = (*stack)[base];
    value = frame.MapOut(std::move(value).toTensor(), 0);
    return;
  }
  // Several results may share one fresh storage, so all of them are in view while each is mapped.
  constexpr int64_t kNoTensor = -2, kSingle = -1;  // else: length of a list
  c10::SmallVector<at::Tensor, 8> results;
  c10::SmallVector<int64_t, 8> shape;
  for (size_t i = base; i < stack->size(); ++i) {
    IValue& value = (*stack)[i];
    if (value.isTensor()) {
      shape.push_back(kSingle);
      results.push_back(std::move(value).toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list = std::move(value).toTensorList();
      shape.push_back(static_cast<int64_t>(list.size()));
      for (size_t k = 0; k < list.size(); ++k) results.push_back(list.extract(k));
    } else {
      shape.push_back(kNoTensor);
    }
  }
  size_t next = 0;
  auto map_next = [&](size_t position) {
    at::Tensor result = std::move(results[next++]);
    frame.SetPending(at::ArrayRef<at::Tensor>(results.data() + next, results.size() - next));
    return frame.MapOut(std::move(result), position);
  };
  for (size_t i = 0; i < count; ++i) {
    IValue& value = (*stack)[base + i];
    if (shape[i] == kSingle) {
      value = map_next(i);
    } else if (shape[i] >= 0) {
      c10::List<at::Tensor> list;
      list.reserve(static_cast<size_t>(shape[i]));
      for (int64_t k = 0; k < shape[i]; ++k) list.push_back(map_next(i));
      value = std::move(list);
    }
  }
}

}  // namespace

void RunRouted(OpRecord& op, c10::DispatchKey target_key, Stack* stack, bool staged) {
  Translate([&] { runtime::CheckAttention(op.name.c_str()); });
  if (C10_UNLIKELY(RoutesMayBeStale())) RescanPending();
  const bool staging = staged || RunsStaged(op);
  router::Counter* counter = staging ? op.cpu_counter : op.alias_counter;
  counter->Add();
  const bool timing = router::g_timing.load(std::memory_order_relaxed);
  const uint64_t start = timing ? NowNs() : 0;
  if (C10_UNLIKELY(router::g_log_dispatch.load(std::memory_order_relaxed)))
    router::LogDispatch(op.short_name, staging ? "cpu" : "alias");
  const size_t base = stack->size() - op.args.size();
  if (C10_UNLIKELY(staging) && op.stageable)
    AnnounceFallback(op, at::ArrayRef<IValue>(stack->data() + base, op.args.size()));

  Frame frame(op, staging);
  const bool ordered = !staging && runtime::KernelsAreOrdered();
  if (C10_UNLIKELY(ordered)) frame.TrackAccesses();
  for (const uint8_t position : op.mapped) MapArgument(frame, op.args[position], position, (*stack)[base + position]);
  frame.SettleDevice();
  if (op.has_generator)
    for (const uint8_t position : op.mapped)
      if (op.args[position].kind == ArgKind::kGenerator) MapGenerator(op, frame, (*stack)[base + position]);

  if (staging) {
    op.handle.redispatchBoxed(c10::DispatchKeySet(StagingKey(target_key)), stack);
  } else if (Delegated()) {
    try {
      op.handle.redispatchBoxed(c10::DispatchKeySet(target_key), stack);
    } catch (const c10::Error& error) {
      frame.RaiseIfDevicesWereMixed(error.what_without_backtrace());
      throw;
    }
  } else {
    Translate([&] { runtime::KernelBegin(frame.device()); });
    RouteScope scope(frame.device(), op.name.c_str());
    std::optional<SwapDefaultGenerator> swap;
    if (C10_UNLIKELY(op.draws_silently)) swap.emplace(frame.device());
    op.handle.redispatchBoxed(c10::DispatchKeySet(target_key), stack);
  }
  frame.WriteBack();
  MapResults(frame, op, stack);
  if (C10_UNLIKELY(ordered)) frame.ReportKernel();
  if (C10_UNLIKELY(frame.copied_bytes() != 0)) {
    counter->copied_bytes.fetch_add(frame.copied_bytes(), std::memory_order_relaxed);
    counter->copied_results.fetch_add(frame.copied_results(), std::memory_order_relaxed);
  }
  if (C10_UNLIKELY(timing)) counter->host_ns.fetch_add(NowNs() - start, std::memory_order_relaxed);
}

}  // namespace torch_fl
