// SPDX-License-Identifier: Apache-2.0
// Routes, counters and the switches of routing.
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "python/convert.h"
#include "router/counters.h"
#include "router/policy.h"
#include "runtime/runtime.h"
#include "torch/route/registry.h"

namespace torch_fl::python {
namespace {

using Row = std::tuple<std::string, std::string, uint64_t, uint64_t, uint64_t, uint64_t>;

std::vector<Row> CounterRowTuples() {
  std::vector<Row> rows;
  for (const router::CounterRow& row : router::CounterRows()) {
    rows.emplace_back(row.op, row.route, row.calls, row.host_ns, row.copied_bytes, row.copied_results);
  }
  return rows;
}

std::map<std::string, uint64_t> RuntimeCounterMap() {
  const runtime::RuntimeCounters c = runtime::GetRuntimeCounters();
  return {
      {"copies_h2d", c.copies_h2d},
      {"copies_d2h", c.copies_d2h},
      {"copies_d2d", c.copies_d2d},
      {"bytes_h2d", c.bytes_h2d},
      {"bytes_d2h", c.bytes_d2h},
      {"bytes_d2d", c.bytes_d2d},
      {"fills", c.fills},
      {"device_syncs", c.device_syncs},
      {"stream_syncs", c.stream_syncs},
      {"event_syncs", c.event_syncs},
  };
}

std::string ForcedRouteName(router::ForcedRoute route) {
  switch (route) {
    case router::ForcedRoute::kAlias:
      return "alias";
    case router::ForcedRoute::kCpu:
      return "cpu";
    default:
      return "";
  }
}

}  // namespace

void BindRouting(py::module_& m) {
  Define(m, "_routed_ops", [] { return WithoutGil([] { return RoutedOps(); }); });
  Define(m, "_rescan_routes", [] { return WithoutGil([] { return RescanRoutes(); }); });
  Define(
      m, "_keep_on_cpu",
      [](const std::string& op, const std::vector<int64_t>& outputs) { WithoutGil([&] { KeepOnCpu(op, outputs); }); },
      py::arg("op"), py::arg("outputs"));

  Define(m, "_counter_rows", [] { return WithoutGil(&CounterRowTuples); });
  Define(m, "_reset_counters", [] {
    router::ResetCounters();
    runtime::ResetRuntimeCounters();
  });
  Define(m, "_runtime_counters", &RuntimeCounterMap);
  Define(m, "_set_timing", [](bool on) { router::SetTiming(on); }, py::arg("on"));

  Define(m, "_get_fallback_policy",
         [] { return std::string(router::FallbackPolicyName(Translate([] { return router::GetFallbackPolicy(); }))); });
  Define(
      m, "_set_fallback_policy",
      [](const std::string& policy) {
        Translate([&] { router::SetFallbackPolicy(router::ParseFallbackPolicy(policy)); });
      },
      py::arg("policy"));
  Define(m, "_get_forced_route", [] { return ForcedRouteName(Translate([] { return router::GetForcedRoute(); })); });
  Define(
      m, "_set_forced_route",
      [](const std::string& route) { Translate([&] { router::SetForcedRoute(router::ParseForcedRoute(route)); }); },
      py::arg("route"));
}

}  // namespace torch_fl::python
