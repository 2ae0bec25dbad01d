// SPDX-License-Identifier: Apache-2.0
#include "torch/route/registry.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "router/policy.h"
#include "torch/aten/register.h"
#include "torch/device/errors.h"
#include "torch/route/alias_route.h"
#include "torch/route/fallback.h"
#include "torch/route/op_record.h"
#include "torch/route/target.h"

namespace torch_fl {

std::atomic<bool> g_routes_may_be_stale{false};

namespace {

using c10::Dispatcher;
using c10::DispatchKey;
using c10::OperatorHandle;
using c10::OperatorName;

// Never routed: hooks answer for pinned memory, record_stream has a kernel of its own, and a lazy clone could change the twin
// under a const argument.
constexpr std::string_view kNotRouted[] = {"aten::record_stream", "aten::is_pinned", "aten::_pin_memory",
                                           "aten::pin_memory", "aten::_lazy_clone"};

// Composites that keep their meaning only on flagos tensors: they move data between devices, or return a CPU tensor by design.
constexpr std::string_view kNotWhole[] = {"aten::_to_copy", "aten::_copy_from", "aten::_copy_from_and_resize",
                                          "aten::_pack_padded_sequence"};

struct KeyPair {
  DispatchKey target, flagos;
};

// The mutex is never held while the dispatcher's lock is taken (registering, finding): the listener comes the other way.
struct Registry {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<OpRecord>> records;
  std::set<std::pair<std::string, DispatchKey>> routed;
  std::unordered_map<std::string, std::vector<c10::RegistrationHandleRAII>> handles;
  std::vector<OperatorName> pending;  // seen by the listener, no target kernel yet
  std::vector<c10::RegistrationHandleRAII> retired;  // kernels of operators that were deregistered
  std::vector<std::shared_ptr<OpRecord>> graveyard;  // a call may still be running on them
  std::atomic<uint64_t> calls_since_event{0};
};

// Never destroyed: handles would deregister kernels while other libraries still run.
Registry& GetRegistry() {
  static Registry* registry = new Registry;
  return *registry;
}

std::vector<KeyPair> KeyPairs() {
  const Target& target = ActiveTarget();
  return {{target.dense, DispatchKey::PrivateUse1},
          {target.sparse, DispatchKey::SparsePrivateUse1},
          {target.sparse_csr, DispatchKey::SparseCsrPrivateUse1}};
}

std::string FullName(const OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

bool Contains(const std::string_view* begin, const std::string_view* end, std::string_view name) {
  return std::find(begin, end, name) != end;
}

// A CompositeExplicitAutograd kernel of ATen is routed as one call: on flagos tensors it would split into many calls (_foreach_*,
// _fused_*) or choose by device (convolution, mode, conj_physical), on the target it does what the target does. Views and factories
// stay composites: they are metadata, or ask for a device of their own. Custom operators too: their author's code expects flagos
// tensors. docs/decisions/0003-whole-composites.md
bool RoutedAsWhole(const OperatorHandle& op) {
  if (!op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd)) return false;
  const std::string& name = op.operator_name().name;
  if (name.rfind("aten::", 0) != 0 || Contains(std::begin(kNotWhole), std::end(kNotWhole), name)) return false;
  if (ReturnsView(op.schema())) return false;
  bool takes_tensor = false;
  for (const c10::Argument& argument : op.schema().arguments()) {
    const ArgKind kind = KindOf(*argument.type());
    if (kind == ArgKind::kDevice || kind == ArgKind::kStorage) return false;
    takes_tensor |= kind == ArgKind::kTensor || kind == ArgKind::kTensorList;
  }
  return takes_tensor;
}

std::shared_ptr<OpRecord> LockedRecordOf(Registry& registry, const OperatorHandle& op) {
  std::shared_ptr<OpRecord>& record = registry.records[FullName(op.operator_name())];
  if (!record) record = std::make_shared<OpRecord>(op);
  return record;
}

// Registers the routes that `op` is due. True when one was added.
bool RouteOperator(const OperatorHandle& op) {
  if (!op.hasSchema()) return false;
  if (Contains(std::begin(kNotRouted), std::end(kNotRouted), op.operator_name().name)) return false;
  Registry& registry = GetRegistry();
  const std::string name = FullName(op.operator_name());
  bool added = false;
  for (const KeyPair& keys : KeyPairs()) {
    if (op.hasKernelForDispatchKey(keys.flagos)) continue;  // owned, or somebody's own kernel
    const bool whole = keys.flagos == DispatchKey::PrivateUse1 && RoutedAsWhole(op);
    if (!whole && !op.hasKernelForDispatchKey(keys.target)) continue;
    std::shared_ptr<OpRecord> record;
    {
      std::lock_guard<std::mutex> lock(registry.mutex);
      if (!registry.routed.emplace(name, keys.flagos).second) continue;
      record = LockedRecordOf(registry, op);
    }
    auto kernel = std::make_unique<RoutedKernel>(std::move(record), keys.target);
    c10::RegistrationHandleRAII handle = Dispatcher::singleton().registerImpl(
        op.operator_name(), keys.flagos, c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel)), std::nullopt,
        nullptr, "torch_fl route");
    std::lock_guard<std::mutex> lock(registry.mutex);
    registry.handles[name].push_back(std::move(handle));
    added = true;
  }
  return added;
}

// Both run under the dispatcher's lock, and before any kernel of a new operator exists: they only take notes.
class Listener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const OperatorHandle& op) override {
    if (!armed) return;
    Registry& registry = GetRegistry();
    std::lock_guard<std::mutex> lock(registry.mutex);
    registry.pending.push_back(op.operator_name());
    registry.calls_since_event.store(0, std::memory_order_relaxed);
    g_routes_may_be_stale.store(true, std::memory_order_relaxed);
  }
  void onOperatorDeregistered(const OperatorHandle& op) override {
    if (!armed) return;
    Registry& registry = GetRegistry();
    std::lock_guard<std::mutex> lock(registry.mutex);
    const std::string name = FullName(op.operator_name());
    if (auto record = registry.records.find(name); record != registry.records.end()) {
      record->second->stale.store(true, std::memory_order_relaxed);
      registry.graveyard.push_back(std::move(record->second));
      registry.records.erase(record);
    }
    for (const KeyPair& keys : KeyPairs()) registry.routed.erase({name, keys.flagos});
    if (auto handles = registry.handles.find(name); handles != registry.handles.end()) {
      for (auto& handle : handles->second) registry.retired.push_back(std::move(handle));
      registry.handles.erase(handles);
    }
    registry.calls_since_event.store(0, std::memory_order_relaxed);
    g_routes_may_be_stale.store(true, std::memory_order_relaxed);
  }
  bool armed = false;
};

void DropRetired() {
  std::vector<c10::RegistrationHandleRAII> retired;
  Registry& registry = GetRegistry();
  {
    std::lock_guard<std::mutex> lock(registry.mutex);
    retired.swap(registry.retired);
  }
}  // deregisters here, outside our mutex

// Reached by operators without a PrivateUse1 kernel and without a composite: registered after the last scan, or hopeless.
void BackendFallback(const OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const DispatchKey target = ActiveTarget().dense;
  const size_t count = op.schema().arguments().size();
  if (!HasTargetRoute(op)) {
    const std::shared_ptr<OpRecord> record = RecordOf(op);
    if (!record->stageable || !op.hasKernelForDispatchKey(CpuTarget().dense))
      RaiseNoRoute(op, at::ArrayRef<c10::IValue>(stack->data() + (stack->size() - count), count));
    return RunRouted(*record, target, stack, /*staged=*/true);
  }
  RouteOperator(op);
  RunRouted(*RecordOf(op), target, stack);
}

void SparseFallback(const OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  RaiseNoRoute(op, at::ArrayRef<c10::IValue>(stack->data() + (stack->size() - count), count));
}

}  // namespace

bool HasTargetRoute(const OperatorHandle& op) {
  return op.hasKernelForDispatchKey(ActiveTarget().dense) || RoutedAsWhole(op);
}

std::shared_ptr<OpRecord> RecordOf(const OperatorHandle& op) {
  Registry& registry = GetRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  return LockedRecordOf(registry, op);
}

int RescanRoutes() {
  DropRetired();
  int added = 0;
  for (const OperatorName& name : Dispatcher::singleton().getAllOpNames())
    if (auto op = Dispatcher::singleton().findSchema(name)) added += RouteOperator(*op) ? 1 : 0;
  return added;
}

void RescanPending() {
  Registry& registry = GetRegistry();
  // A kernel usually follows its schema at once. Look often at first, then at powers of two, then no more: operators that never
  // get a target kernel must not cost anything for ever.
  const uint64_t n = registry.calls_since_event.fetch_add(1, std::memory_order_relaxed) + 1;
  if (n > 64 && (n & (n - 1)) != 0) return;
  std::vector<OperatorName> waiting;
  {
    std::lock_guard<std::mutex> lock(registry.mutex);
    if (n > (1U << 20)) registry.pending.clear();
    waiting.swap(registry.pending);
    if (waiting.empty() && registry.retired.empty()) g_routes_may_be_stale.store(false, std::memory_order_relaxed);
  }
  DropRetired();
  std::vector<OperatorName> left;
  for (const OperatorName& name : waiting) {
    auto op = Dispatcher::singleton().findSchema(name);
    if (op && !RouteOperator(*op) && !op->hasKernelForDispatchKey(DispatchKey::PrivateUse1)) left.push_back(name);
  }
  if (left.empty()) return;
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.pending.insert(registry.pending.end(), left.begin(), left.end());
}

std::vector<std::string> RoutedOps() {
  std::set<std::string> names;
  for (const OperatorName& name : Dispatcher::singleton().getAllOpNames()) {
    const auto op = Dispatcher::singleton().findSchema(name);
    if (!op) continue;
    for (const KeyPair& keys : KeyPairs())
      if (op->hasKernelForDispatchKey(keys.flagos)) names.insert(FullName(name));
  }
  return {names.begin(), names.end()};
}

void KeepOnCpu(const std::string& op, const std::vector<int64_t>& outputs) {
  const size_t colon = op.find("::");
  TORCH_CHECK(colon != std::string::npos, "keep_on_cpu: '", op,
              "' is not an operator name; write it as namespace::name or namespace::name.overload");
  const size_t dot = op.find('.', colon);
  const OperatorName name(op.substr(0, dot), dot == std::string::npos ? "" : op.substr(dot + 1));
  auto handle = Dispatcher::singleton().findSchema(name);
  TORCH_CHECK(handle.has_value(), "keep_on_cpu: no operator '", op, "' is registered");
  const auto returns = static_cast<int64_t>(handle->schema().returns().size());
  uint64_t bits = 0;
  for (const int64_t output : outputs) {
    TORCH_CHECK(output >= 0 && output < returns && output < 64, "keep_on_cpu: output ", output, " of '", op,
                "' is outside 0 .. ", returns - 1);
    bits |= uint64_t{1} << output;
  }
  RecordOf(*handle)->keep_on_cpu.store(bits, std::memory_order_relaxed);
}

void RegisterRoutes() {
  router::InitLogFlags();
  // Read the switches now: a misspelt one must not wait for the first fallback to be noticed.
  Translate([] {
    router::GetFallbackPolicy();
    router::GetForcedRoute();
  });
  RegisterOwnedOps();
  RegisterHotOps();
  static torch::Library* fallback =
      new torch::Library(torch::Library::IMPL, "_", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&BackendFallback>());
  for (DispatchKey key : {DispatchKey::SparsePrivateUse1, DispatchKey::SparseCsrPrivateUse1}) {
    auto* sparse = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
    sparse->fallback(torch::CppFunction::makeFromBoxedFunction<&SparseFallback>());
  }
  // torch registers this for its own keys only; without it a custom operator's missing gradient goes unnoticed.
  auto* autograd = new torch::Library(torch::Library::IMPL, "_", DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  autograd->fallback(torch::autograd::basicAutogradNotImplementedFallback());

  auto listener = std::make_unique<Listener>();
  Listener* watching = listener.get();
  static auto* handle =
      new c10::RegistrationHandleRAII(Dispatcher::singleton().addRegistrationListener(std::move(listener)));
  (void)handle;
  watching->armed = true;  // the dispatcher replays existing operators to a new listener; the scan below covers those
  RescanRoutes();
}

}  // namespace torch_fl
