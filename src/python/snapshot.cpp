// SPDX-License-Identifier: Apache-2.0
// Memory history and snapshots, in the shape that torch's memory viewer reads (python/torch_fl/flagos/memory.py describes
// it). Where an allocation was made is one of torch's captured tracebacks, resolved only when a snapshot is taken.
#include <torch/csrc/profiler/combined_traceback.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "python/convert.h"
#include "runtime/allocator.h"

namespace torch {
// Exported by libtorch_python, but its header wants a JSON library that the wheel does not bring.
TORCH_API std::vector<pybind11::object> py_symbolize(std::vector<CapturedTraceback*>& to_symbolize);
}  // namespace torch

namespace torch_fl::python {
namespace {

bool InterpreterIsEnding() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Takes the GIL, since operators allocate without it. The allocator holds no lock then (allocator.h), so the order is
// always GIL first. Not while Python ends: a thread that asks for the GIL then never comes back.
template <bool kCpp>
runtime::MemoryContext Gather() {
  if (Py_IsInitialized() == 0 || InterpreterIsEnding()) return nullptr;
  try {
    return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, kCpp);
  } catch (const std::exception&) {
    return nullptr;  // no trace is better than a failed allocation
  }
}

void RecordHistory(size_t max_entries, const std::optional<std::string>& context, const std::string& stacks) {
  using runtime::HistoryContext;
  HistoryContext when = HistoryContext::kNever;
  if (context.has_value()) {
    if (*context == "state") {
      when = HistoryContext::kState;
    } else if (*context == "alloc") {
      when = HistoryContext::kAlloc;
    } else {
      TORCH_CHECK_VALUE(*context == "all", "context is None, 'state', 'alloc' or 'all', but got '", *context, "'");
      when = HistoryContext::kAll;
    }
  }
  TORCH_CHECK_VALUE(stacks == "python" || stacks == "all", "stacks is 'python' or 'all', but got '", stacks, "'");
  const runtime::GatherContext gather = stacks == "all" ? &Gather<true> : &Gather<false>;
  if (when != HistoryContext::kNever) torch::unwind::unwind();  // the first one is slow: it reads the loaded libraries
  WithoutGil(
      [&] { runtime::RecordMemoryHistory(max_entries, when, when == HistoryContext::kNever ? nullptr : gather); });
}

const char* ActionName(runtime::TraceAction action) {
  switch (action) {
    case runtime::TraceAction::kAlloc:
      return "alloc";
    case runtime::TraceAction::kFreeRequested:
      return "free_requested";
    case runtime::TraceAction::kFreeCompleted:
      return "free_completed";
    case runtime::TraceAction::kSegmentAlloc:
      return "segment_alloc";
    case runtime::TraceAction::kSegmentFree:
      return "segment_free";
    case runtime::TraceAction::kSegmentMap:
      return "segment_map";
    case runtime::TraceAction::kSegmentUnmap:
      return "segment_unmap";
    case runtime::TraceAction::kSnapshot:
      return "snapshot";
    case runtime::TraceAction::kOom:
      return "oom";
  }
  return "unknown";
}

const char* StateName(runtime::BlockState state) {
  switch (state) {
    case runtime::BlockState::kActiveAllocated:
      return "active_allocated";
    case runtime::BlockState::kActivePendingFree:
      return "active_pending_free";
    default:
      return "inactive";
  }
}

// Hands out frame lists; resolves all of them at once, because a library's symbols are read once a batch.
class Frames {
 public:
  void Add(const runtime::MemoryContext& context) {
    auto* const traceback = static_cast<torch::CapturedTraceback*>(context.get());
    if (traceback != nullptr && places_.emplace(traceback, tracebacks_.size()).second) tracebacks_.push_back(traceback);
  }
  void Resolve() { lists_ = torch::py_symbolize(tracebacks_); }
  py::object Of(const runtime::MemoryContext& context) const {
    if (context == nullptr) return py::list();
    return lists_[places_.at(static_cast<torch::CapturedTraceback*>(context.get()))];
  }

 private:
  std::unordered_map<torch::CapturedTraceback*, size_t> places_;
  std::vector<torch::CapturedTraceback*> tracebacks_;
  std::vector<py::object> lists_;
};

py::dict SegmentDict(const runtime::SegmentSnapshot& segment, const Frames& frames) {
  py::list blocks;
  for (const runtime::BlockSnapshot& block : segment.blocks) {
    py::dict dict;
    dict["address"] = block.address;
    dict["size"] = block.size;
    dict["requested_size"] = block.requested_size;
    dict["state"] = StateName(block.state);
    dict["frames"] = frames.Of(block.context);
    blocks.append(std::move(dict));
  }
  py::dict dict;
  dict["device"] = segment.device;
  dict["address"] = segment.address;
  dict["total_size"] = segment.total_size;
  dict["allocated_size"] = segment.allocated_size;
  dict["active_size"] = segment.active_size;
  dict["requested_size"] = segment.requested_size;
  dict["stream"] = segment.stream;
  dict["segment_type"] = segment.is_large ? "large" : "small";
  dict["segment_pool_id"] = segment.pool;
  dict["is_expandable"] = segment.is_expandable;
  dict["frames"] = frames.Of(segment.context);
  dict["blocks"] = std::move(blocks);
  return dict;
}

py::dict EntryDict(const runtime::TraceEntry& entry, const Frames& frames) {
  py::dict dict;
  dict["action"] = ActionName(entry.action);
  dict[entry.action == runtime::TraceAction::kOom ? "device_free" : "addr"] = entry.address;
  dict["size"] = entry.size;
  dict["stream"] = entry.stream;
  dict["time_us"] = entry.time_us;
  dict["segment_pool_id"] = entry.pool;
  dict["frames"] = frames.Of(entry.context);
  return dict;
}

py::dict Snapshot(const std::optional<runtime::MemoryPoolId>& pool) {
  const runtime::MemorySnapshot snapshot = WithoutGil([&] { return runtime::TakeMemorySnapshot(pool); });
  Frames frames;
  for (const auto& segment : snapshot.segments) {
    frames.Add(segment.context);
    for (const auto& block : segment.blocks) frames.Add(block.context);
  }
  for (const auto& trace : snapshot.traces) {
    for (const auto& entry : trace) frames.Add(entry.context);
  }
  frames.Resolve();

  py::list segments;
  for (const auto& segment : snapshot.segments) segments.append(SegmentDict(segment, frames));
  py::list traces;
  for (const auto& trace : snapshot.traces) {
    py::list entries;
    for (const auto& entry : trace) entries.append(EntryDict(entry, frames));
    traces.append(std::move(entries));
  }
  py::dict dict;
  dict["segments"] = std::move(segments);
  dict["device_traces"] = std::move(traces);
  return dict;
}

}  // namespace

void BindSnapshot(py::module_& m) {
  Define(m, "_record_memory_history", &RecordHistory, py::arg("max_entries"), py::arg("context"), py::arg("stacks"));
  Define(m, "_memory_snapshot", &Snapshot, py::arg("pool") = py::none());
}

}  // namespace torch_fl::python
