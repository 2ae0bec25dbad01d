// SPDX-License-Identifier: Apache-2.0
// fault: chosen calls fail and never reach the driver.
#include <algorithm>
#include <array>
#include <string>

#include "runtime/internal.h"
#include "runtime/layers/entries.h"
#include "runtime/layers/layer.h"

namespace torch_fl::runtime {
namespace layers {

namespace {

constexpr flagos_status_t kStatuses[] = {
    FLAGOS_NOT_READY,      FLAGOS_INVALID_VALUE, FLAGOS_INVALID_DEVICE,  FLAGOS_OUT_OF_MEMORY, FLAGOS_NO_DEVICE,
    FLAGOS_INVALID_HANDLE, FLAGOS_UNSUPPORTED,   FLAGOS_NOT_INITIALIZED, FLAGOS_DEVICE_LOST,   FLAGOS_LIBRARY_MISSING,
    FLAGOS_SYMBOL_MISSING, FLAGOS_VENDOR_ERROR,  FLAGOS_ALREADY,         FLAGOS_UNORDERED};

// Lock-free, because every call of every thread passes here. `left` counts down; at 1 the call fails.
struct Trigger {
  std::atomic<int64_t> left{0};
  std::atomic<uint64_t> nth{0};
  std::atomic<flagos_status_t> status{FLAGOS_OK};
};

const flagos_driver_v1_t* g_inner = nullptr;
flagos_driver_v1_t g_table;
bool g_counts = false;  // written before the table is handed out
std::atomic<bool> g_on{false};
std::array<Trigger, kStatusEntries.size()> g_triggers;
std::atomic<uint64_t> g_fired{0};

size_t FindEntry(std::string_view name) {
  return static_cast<size_t>(std::find(kStatusEntries.begin(), kStatusEntries.end(), name) - kStatusEntries.begin());
}

std::string EntryNames() {
  std::string text;
  for (const char* name : kStatusEntries) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

flagos_status_t FindStatus(const std::string& name) {
  for (const flagos_status_t status : kStatuses) {
    if (StatusName(status) == name) return status;
  }
  return FLAGOS_OK;
}

std::string StatusNames() {
  std::string text;
  for (const flagos_status_t status : kStatuses) text += (text.empty() ? "" : ", ") + StatusName(status);
  return text;
}

void Arm(size_t entry, uint64_t nth, flagos_status_t status) {
  Trigger& trigger = g_triggers[entry];
  trigger.left.store(0);
  trigger.nth.store(nth);
  trigger.status.store(status);
  trigger.left.store(static_cast<int64_t>(nth));
}

struct Fault {
  template <auto Entry, class... Arguments>
  static flagos_status_t Call(Arguments... arguments) {
    constexpr size_t kIndex = kEntryIndex<Entry>;
    if (g_counts) CountCall(kIndex);
    Trigger& trigger = g_triggers[kIndex];
    if (trigger.left.load(std::memory_order_relaxed) > 0 && trigger.left.fetch_sub(1) == 1) [[unlikely]] {
      g_fired.fetch_add(1);
      return Refuse(trigger.status.load(), kEntryName<Entry>, -1, "%s: injected by the fault layer, call %llu",
                    kEntryName<Entry>, static_cast<unsigned long long>(trigger.nth.load()));
    }
    return (g_inner->*Entry)(arguments...);
  }
};

// Calls `arm` for each ENTRY:NTH:STATUS of the arguments.
template <class Arm>
void ForEachFault(const LayerSpec& spec, Arm&& arm) {
  const auto& words = spec.arguments;
  for (size_t i = 0; i < words.size(); i += 3) {
    const size_t entry = FindEntry(words[i]);
    if (entry == kStatusEntries.size()) BadArgument(spec, words[i], "one of the entries: " + EntryNames());
    if (i + 2 >= words.size()) BadArgument(spec, words[i], "fault:ENTRY:NTH:STATUS, as in fault:copy:2:OUT_OF_MEMORY");
    const uint64_t nth = ParseNumber(spec, words[i + 1], words[i + 1], 1, INT64_MAX);
    const flagos_status_t status = FindStatus(words[i + 2]);
    if (status == FLAGOS_OK) BadArgument(spec, words[i + 2], "one of: " + StatusNames());
    arm(entry, nth, status);
  }
}

void Check(const LayerSpec& spec) {
  ForEachFault(spec, [](size_t, uint64_t, flagos_status_t) {});
}

const flagos_driver_v1_t& Wrap(const flagos_driver_v1_t& inner, const LayerSpec& spec) {
  g_inner = &inner;
  g_table = inner;
  WrapAll<Fault>(inner, &g_table);
  ForEachFault(spec, Arm);
  g_counts = ClaimCallCounts();
  g_on.store(true);
  return g_table;
}

}  // namespace

const Layer kFault{"fault", &Check, &Wrap};

}  // namespace layers

void ArmFault(std::string_view entry, uint64_t nth, flagos_status_t status) {
  layers::RequireLayer(layers::g_on.load(), "ArmFault", "fault");
  const size_t index = layers::FindEntry(entry);
  if (index == layers::kStatusEntries.size()) {
    throw Error(FLAGOS_INVALID_VALUE,
                "ArmFault: unknown driver function '" + std::string(entry) + "'; known: " + layers::EntryNames());
  }
  if (nth > INT64_MAX) throw Error(FLAGOS_INVALID_VALUE, "ArmFault: nth is " + std::to_string(nth) + ", too large");
  if (nth != 0 && layers::FindStatus(StatusName(status)) == FLAGOS_OK) {
    throw Error(FLAGOS_INVALID_VALUE,
                "ArmFault: a call cannot fail with " + StatusName(status) + "; use one of: " + layers::StatusNames());
  }
  layers::Arm(index, nth, status);
}

void DisarmFaults() {
  layers::RequireLayer(layers::g_on.load(), "DisarmFaults", "fault");
  for (layers::Trigger& trigger : layers::g_triggers) trigger.left.store(0);
}

uint64_t FaultsFired() {
  layers::RequireLayer(layers::g_on.load(), "FaultsFired", "fault");
  return layers::g_fired.load();
}

}  // namespace torch_fl::runtime
