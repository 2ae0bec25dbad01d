// SPDX-License-Identifier: Apache-2.0
// What ran, how often, on which route. No torch header.
//
// Threads: all functions from any thread. A Counter lives for ever, so the hot path keeps a pointer and adds relaxed.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace torch_fl::router {

struct Counter {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> host_ns{0};       // only while timing is on
  std::atomic<uint64_t> copied_bytes{0};  // moved by a copying fallback or by a result that could not be adopted
  std::atomic<uint64_t> copied_results{0};  // fresh results that had to be copied into device memory

  void Add() noexcept { calls.fetch_add(1, std::memory_order_relaxed); }
};

struct CounterRow {
  std::string op;     // "aten::add.Tensor"
  std::string route;  // "alias", "cpu", "native"
  uint64_t calls, host_ns, copied_bytes, copied_results;
};

// The counter of an operator on a route; made on first use, zeroed by ResetCounters, never destroyed.
Counter* GetCounter(const std::string& op, const std::string& route);
std::vector<CounterRow> CounterRows();  // rows with calls > 0, in no order
void ResetCounters() noexcept;

// Host time per call is measured only on demand: two clock reads cost as much as a small operator's routing.
extern std::atomic<bool> g_timing;
void SetTiming(bool on) noexcept;

}  // namespace torch_fl::router
