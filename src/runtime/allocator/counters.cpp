// SPDX-License-Identifier: Apache-2.0
#include "runtime/allocator/counters.h"

#include <algorithm>

namespace torch_fl::runtime {
namespace {

template <class Visitor>
void VisitStats(MemoryStats& stats, const Visitor& visit) {
  for (StatArray* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (Stat& stat : *array) visit(stat);
  }
  visit(stats.oversize_allocations);
  visit(stats.oversize_segments);
}

void Move(StatArray& stats, int64_t up, int64_t down) noexcept {
  for (Stat* stat : {&stats[kSmallPool], &stats[kAllPools]}) {
    stat->current += up - down;
    stat->allocated += up;
    stat->freed += down;
  }
}

// How much more is possible without a new peak.
int64_t Headroom(const StatArray& stats) noexcept {
  const auto room = [](const Stat& stat) { return stat.peak - stat.current; };
  return std::min(room(stats[kSmallPool]), room(stats[kAllPools]));
}

void Peak(StatArray& stats) noexcept {
  for (Stat* stat : {&stats[kSmallPool], &stats[kAllPools]}) stat->peak = std::max(stat->peak, stat->current);
}

}  // namespace

void ResetPeaks(MemoryStats& stats) noexcept {
  VisitStats(stats, [](Stat& stat) { stat.peak = stat.current; });
}

void ResetAccumulated(MemoryStats& stats) noexcept {
  VisitStats(stats, [](Stat& stat) { stat.allocated = stat.freed = 0; });
  stats.num_alloc_retries = stats.num_ooms = stats.num_sync_all_streams = 0;
  stats.num_device_alloc = stats.num_device_free = 0;
}

void Counters::Fold() noexcept {
  Move(stats_.allocation, taken_.blocks, given_.blocks);
  Move(stats_.active, taken_.blocks, given_.blocks);
  Move(stats_.inactive_split, given_.blocks, taken_.blocks);
  Move(stats_.allocated_bytes, taken_.bytes, given_.bytes);
  Move(stats_.active_bytes, taken_.bytes, given_.bytes);
  Move(stats_.inactive_split_bytes, given_.bytes, taken_.bytes);
  Move(stats_.requested_bytes, taken_.requested, given_.requested);
  taken_ = given_ = {};
}

void Counters::Arm() noexcept {
  highest_.blocks = std::min(Headroom(stats_.allocation), Headroom(stats_.active));
  highest_.bytes = std::min(Headroom(stats_.allocated_bytes), Headroom(stats_.active_bytes));
  highest_.requested = Headroom(stats_.requested_bytes);
  lowest_.blocks = -Headroom(stats_.inactive_split);
  lowest_.bytes = -Headroom(stats_.inactive_split_bytes);
}

void Counters::Refresh() noexcept {
  Fold();
  for (StatArray* array : {&stats_.allocation, &stats_.active, &stats_.inactive_split, &stats_.allocated_bytes,
                           &stats_.active_bytes, &stats_.inactive_split_bytes, &stats_.requested_bytes}) {
    Peak(*array);
  }
  Arm();
}

}  // namespace torch_fl::runtime
