// SPDX-License-Identifier: Apache-2.0
#include "router/counters.h"

#include <map>
#include <mutex>
#include <utility>

namespace torch_fl::router {
namespace {

// Never destroyed: routes count until the last instruction of the process.
struct Table {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, Counter> counters;
};

Table& GetTable() {
  static Table* table = new Table;
  return *table;
}

uint64_t Load(const std::atomic<uint64_t>& value) { return value.load(std::memory_order_relaxed); }

}  // namespace

std::atomic<bool> g_timing{false};

void SetTiming(bool on) noexcept { g_timing.store(on, std::memory_order_relaxed); }

Counter* GetCounter(const std::string& op, const std::string& route) {
  Table& table = GetTable();
  std::lock_guard<std::mutex> lock(table.mutex);
  return &table.counters[{op, route}];
}

std::vector<CounterRow> CounterRows() {
  Table& table = GetTable();
  std::lock_guard<std::mutex> lock(table.mutex);
  std::vector<CounterRow> rows;
  for (const auto& [key, counter] : table.counters) {
    if (Load(counter.calls) == 0) continue;
    rows.push_back({key.first, key.second, Load(counter.calls), Load(counter.host_ns), Load(counter.copied_bytes),
                    Load(counter.copied_results)});
  }
  return rows;
}

void ResetCounters() noexcept {
  Table& table = GetTable();
  std::lock_guard<std::mutex> lock(table.mutex);
  for (auto& [key, counter] : table.counters) {
    counter.calls.store(0, std::memory_order_relaxed);
    counter.host_ns.store(0, std::memory_order_relaxed);
    counter.copied_bytes.store(0, std::memory_order_relaxed);
    counter.copied_results.store(0, std::memory_order_relaxed);
  }
}

}  // namespace torch_fl::router
