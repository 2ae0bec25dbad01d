// SPDX-License-Identifier: Apache-2.0
// The ring of trace entries of one device. Guarded by the allocator's lock, except for what says otherwise.
#pragma once

#include <vector>

#include "runtime/allocator.h"

namespace torch_fl::runtime {

struct HistorySettings {
  size_t max_entries = 0;  // 0: off
  HistoryContext when = HistoryContext::kNever;
  GatherContext gather = nullptr;
};

class History {
 public:
  // What was recorded before is handed to the caller, who lets it die outside the lock.
  std::vector<TraceEntry> Set(const HistorySettings& settings) noexcept;
  bool on() const noexcept { return settings_.max_entries != 0; }
  const HistorySettings& settings() const noexcept { return settings_; }
  // Returns the context of the entry that had to go.
  MemoryContext Add(TraceEntry entry);
  std::vector<TraceEntry> Entries() const;  // oldest first

 private:
  HistorySettings settings_;
  std::vector<TraceEntry> ring_;
  size_t next_ = 0;  // where the oldest is, once the ring is full
};

// Microseconds since the epoch.
int64_t TraceTime() noexcept;

}  // namespace torch_fl::runtime
