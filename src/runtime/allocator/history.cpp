// SPDX-License-Identifier: Apache-2.0
#include "runtime/allocator/history.h"

#include <chrono>
#include <utility>

namespace torch_fl::runtime {

std::vector<TraceEntry> History::Set(const HistorySettings& settings) noexcept {
  settings_ = settings;
  next_ = 0;
  return std::exchange(ring_, {});
}

MemoryContext History::Add(TraceEntry entry) {
  if (ring_.size() < settings_.max_entries) {
    ring_.push_back(std::move(entry));
    return nullptr;
  }
  std::swap(ring_[next_], entry);
  next_ = (next_ + 1) % ring_.size();
  return std::move(entry.context);
}

std::vector<TraceEntry> History::Entries() const {
  std::vector<TraceEntry> entries;
  entries.reserve(ring_.size());
  for (size_t i = 0; i < ring_.size(); ++i) entries.push_back(ring_[(next_ + i) % ring_.size()]);
  return entries;
}

int64_t TraceTime() noexcept {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::microseconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace torch_fl::runtime
