// SPDX-License-Identifier: Apache-2.0
// The statistics of one device, exact at every moment and cheap on the hot path.
//
// Hot calls (small blocks through the quick lists) only add to two groups of counters and compare with limits; every other
// call folds those into MemoryStats first and sets new limits afterwards. Guarded by the allocator's lock.
#pragma once

#include <cstdint>

#include "runtime/allocator.h"

namespace torch_fl::runtime {

inline void Raise(Stat& stat, int64_t amount) noexcept {
  stat.current += amount;
  stat.allocated += amount;
  if (stat.current > stat.peak) stat.peak = stat.current;
}
inline void Lower(Stat& stat, int64_t amount) noexcept {
  stat.current -= amount;
  stat.freed += amount;
}
inline void Raise(StatArray& stats, PoolClass pool_class, int64_t amount) noexcept {
  Raise(stats[pool_class], amount);
  Raise(stats[kAllPools], amount);
}
inline void Lower(StatArray& stats, PoolClass pool_class, int64_t amount) noexcept {
  Lower(stats[pool_class], amount);
  Lower(stats[kAllPools], amount);
}
void ResetPeaks(MemoryStats& stats) noexcept;
void ResetAccumulated(MemoryStats& stats) noexcept;

class Counters {
 public:
  // ---- Hot calls: a small block leaves or enters a quick list.
  void TakeQuick(size_t size, size_t requested) noexcept {
    taken_.blocks += 1;
    taken_.bytes += static_cast<int64_t>(size);
    taken_.requested += static_cast<int64_t>(requested);
    if (taken_.blocks - given_.blocks > highest_.blocks || taken_.bytes - given_.bytes > highest_.bytes ||
        taken_.requested - given_.requested > highest_.requested) [[unlikely]]
      Refresh();
  }
  void GiveQuick(size_t size, size_t requested) noexcept {
    given_.blocks += 1;
    given_.bytes += static_cast<int64_t>(size);
    given_.requested += static_cast<int64_t>(requested);
    if (taken_.blocks - given_.blocks < lowest_.blocks || taken_.bytes - given_.bytes < lowest_.bytes) [[unlikely]]
      Refresh();
  }

  // ---- Other calls: between Fold and Arm they change `stats` at will.
  MemoryStats& stats() noexcept { return stats_; }
  void Fold() noexcept;
  void Arm() noexcept;

 private:
  struct Flow {
    int64_t blocks = 0, bytes = 0, requested = 0;
  };
  void Refresh() noexcept;

  Flow taken_, given_;
  // taken - given beyond these would be a new peak of something: of what is live, or of what lies free.
  Flow highest_{-1, -1, -1}, lowest_{1, 1, 0};
  MemoryStats stats_;
};

}  // namespace torch_fl::runtime
