// SPDX-License-Identifier: Apache-2.0
// The caching allocators: statistics, limits, settings, private pools. History and snapshots are in snapshot.cpp.
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "python/convert.h"
#include "runtime/allocator.h"
#include "runtime/pinned.h"
#include "runtime/runtime.h"
#include "torch/device/allocator_settings.h"

namespace torch_fl::python {
namespace {

using StatsMap = std::map<std::string, int64_t>;

void AddStat(StatsMap& map, const std::string& name, const runtime::Stat& stat) {
  map[name + ".current"] = stat.current;
  map[name + ".peak"] = stat.peak;
  map[name + ".allocated"] = stat.allocated;
  map[name + ".freed"] = stat.freed;
}

void AddStats(StatsMap& map, const std::string& name, const runtime::StatArray& stats) {
  AddStat(map, name + ".all", stats[runtime::kAllPools]);
  AddStat(map, name + ".small_pool", stats[runtime::kSmallPool]);
  AddStat(map, name + ".large_pool", stats[runtime::kLargePool]);
}

StatsMap MemoryStatsMap(int device) {
  // A device without a context has nothing to count, and asking must not make one.
  const runtime::MemoryStats s = WithoutGil(
      [&] { return runtime::HasContext(device) ? runtime::GetMemoryStats(device) : runtime::MemoryStats{}; });
  StatsMap map;
  AddStats(map, "allocation", s.allocation);
  AddStats(map, "segment", s.segment);
  AddStats(map, "active", s.active);
  AddStats(map, "inactive_split", s.inactive_split);
  AddStats(map, "allocated_bytes", s.allocated_bytes);
  AddStats(map, "reserved_bytes", s.reserved_bytes);
  AddStats(map, "active_bytes", s.active_bytes);
  AddStats(map, "inactive_split_bytes", s.inactive_split_bytes);
  AddStats(map, "requested_bytes", s.requested_bytes);
  AddStat(map, "oversize_allocations", s.oversize_allocations);
  AddStat(map, "oversize_segments", s.oversize_segments);
  map["num_alloc_retries"] = s.num_alloc_retries;
  map["num_ooms"] = s.num_ooms;
  map["num_sync_all_streams"] = s.num_sync_all_streams;
  map["num_device_alloc"] = s.num_device_alloc;
  map["num_device_free"] = s.num_device_free;
  map["max_split_size"] = s.max_split_size;
  return map;
}

// The names are those of torch's page-locked allocator: "allocations" are what it holds from the driver, "active" is what
// callers hold.
StatsMap HostMemoryStatsMap() {
  const runtime::HostMemoryStats s = WithoutGil([] { return runtime::GetHostMemoryStats(); });
  StatsMap map;
  AddStat(map, "allocations", s.segment);
  AddStat(map, "allocated_bytes", s.reserved_bytes);
  AddStat(map, "active_requests", s.allocation);
  AddStat(map, "active_bytes", s.allocated_bytes);
  map["num_host_alloc"] = s.num_host_alloc;
  map["num_host_free"] = s.num_host_free;
  map["host_alloc_time.total"] = s.host_alloc_us;
  map["host_alloc_time.count"] = s.num_host_alloc;
  map["host_free_time.total"] = s.host_free_us;
  map["host_free_time.count"] = s.num_host_free;
  return map;
}

py::object FindAllocation(uintptr_t pointer) {
  runtime::AllocationInfo info;
  const bool found = WithoutGil([&] { return runtime::FindAllocation(reinterpret_cast<const void*>(pointer), &info); });
  if (!found) return py::none();
  py::dict dict;
  dict["base"] = reinterpret_cast<uintptr_t>(info.base);
  dict["size"] = info.size;
  dict["device"] = info.device;
  dict["number"] = info.number;
  dict["op"] = info.op == nullptr ? py::object(py::none()) : py::cast(std::string(info.op));
  return dict;
}

// For other libraries: memory without a tensor, on a stream of the caller's choice.
uintptr_t AllocateRaw(size_t size, int device, int64_t stream_id) {
  return WithoutGil([&] {
    runtime::Stream* const previous = runtime::ExchangeCurrentStream(runtime::StreamFromId(device, stream_id));
    void* pointer = nullptr;
    try {
      pointer = runtime::Allocate(device, size, "caching_allocator_alloc");
    } catch (...) {
      runtime::ExchangeCurrentStream(previous);
      throw;
    }
    runtime::ExchangeCurrentStream(previous);
    return reinterpret_cast<uintptr_t>(pointer);
  });
}

void FreeRaw(uintptr_t pointer) {
  WithoutGil([&] {
    auto* const address = reinterpret_cast<void*>(pointer);
    int device = -1;
    TORCH_CHECK(address == nullptr || runtime::Owns(address, &device), "caching_allocator_delete: ", address,
                " is not the start of live memory of caching_allocator_alloc");
    runtime::Free(address);
  });
}

py::dict Settings() {
  const runtime::AllocatorConfig config = WithoutGil([] { return runtime::GetAllocatorConfig(); });
  py::dict dict;
  dict["max_split_size"] = config.max_split_size;
  dict["max_non_split_rounding_size"] = config.max_non_split_rounding_size;
  dict["large_segment_size"] = config.large_segment_size;
  dict["garbage_collection_threshold"] = config.garbage_collection_threshold;
  dict["expandable_segments"] = config.expandable_segments;
  dict["roundup_power2_divisions"] = config.roundup_power2_divisions;
  return dict;
}

// ---- Private pools

runtime::MemoryPoolId NextPoolId() {
  // Like torch's: the first number belongs to graphs, the second to pools that a user makes.
  static std::atomic<uint64_t> next{1};
  return {0, next.fetch_add(1, std::memory_order_relaxed)};
}

void BeginForThisThread(int device, runtime::MemoryPoolId pool) {
  WithoutGil([&] {
    const std::thread::id owner = std::this_thread::get_id();
    runtime::BeginAllocateToPool(device, pool,
                                 [owner](runtime::Stream*) { return std::this_thread::get_id() == owner; });
  });
}

}  // namespace

void BindMemory(py::module_& m) {
  const py::arg device("device");
  const py::arg pool("pool");

  Define(m, "_memory_stats", &MemoryStatsMap, device);
  Define(m, "_reset_peak_stats", [](int index) { WithoutGil([&] { runtime::ResetPeakStats(index); }); }, device);
  Define(
      m, "_reset_accumulated_stats", [](int index) { WithoutGil([&] { runtime::ResetAccumulatedStats(index); }); },
      device);
  Define(
      m, "_empty_cache",
      [](std::optional<runtime::MemoryPoolId> id) {
        WithoutGil([&] { id.has_value() ? runtime::EmptyCache(*id) : runtime::EmptyCache(); });
      },
      py::arg("pool") = py::none());
  Define(m, "_find_allocation", &FindAllocation, py::arg("pointer"));
  Define(m, "_allocate_raw", &AllocateRaw, py::arg("size"), device, py::arg("stream_id"));
  Define(m, "_free_raw", &FreeRaw, py::arg("pointer"));

  Define(
      m, "_set_memory_fraction",
      [](double fraction, int index) { WithoutGil([&] { runtime::SetMemoryFraction(index, fraction); }); },
      py::arg("fraction"), device);
  Define(
      m, "_get_memory_fraction",
      [](int index) { return WithoutGil([&] { return runtime::GetMemoryFraction(index); }); }, device);
  Define(
      m, "_set_allocator_settings",
      [](const std::string& settings) { WithoutGil([&] { SetAllocatorSettings(settings); }); }, py::arg("settings"));
  Define(m, "_allocator_settings", &Settings);

  Define(m, "_pool_id", &NextPoolId);
  Define(
      m, "_retain_pool",
      [](int index, runtime::MemoryPoolId id) { WithoutGil([&] { runtime::RetainPool(index, id); }); }, device, pool);
  Define(
      m, "_release_pool",
      [](int index, runtime::MemoryPoolId id) { WithoutGil([&] { runtime::ReleasePool(index, id); }); }, device, pool);
  Define(
      m, "_pool_use_count",
      [](int index, runtime::MemoryPoolId id) { return WithoutGil([&] { return runtime::PoolUseCount(index, id); }); },
      device, pool);
  Define(m, "_begin_allocate_to_pool", &BeginForThisThread, device, pool);
  Define(
      m, "_end_allocate_to_pool",
      [](int index, runtime::MemoryPoolId id) { WithoutGil([&] { runtime::EndAllocateToPool(index, id); }); }, device,
      pool);

  Define(m, "_host_memory_stats", &HostMemoryStatsMap);
  Define(m, "_host_empty_cache", [] { WithoutGil([] { runtime::HostEmptyCache(); }); });
  Define(m, "_host_reset_peak_stats", [] { WithoutGil([] { runtime::ResetHostPeakStats(); }); });
  Define(m, "_host_reset_accumulated_stats", [] { WithoutGil([] { runtime::ResetHostAccumulatedStats(); }); });
}

}  // namespace torch_fl::python
