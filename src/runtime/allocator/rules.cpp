// SPDX-License-Identifier: Apache-2.0
#include "runtime/allocator/rules.h"

#include <algorithm>
#include <bit>

namespace torch_fl::runtime {
namespace {

size_t Log2(size_t size) { return static_cast<size_t>(std::bit_width(size)) - 1; }

size_t DivisionsFor(size_t size, const std::vector<size_t>& divisions) {
  if (divisions.empty()) return 0;
  const size_t octave = Log2(size);
  const size_t index = octave > 20 ? octave - 20 : 0;
  return divisions[std::min(index, divisions.size() - 1)];
}

}  // namespace

size_t RoundRequest(size_t size, const AllocatorConfig& config) {
  const size_t divisions = DivisionsFor(size, config.roundup_power2_divisions);
  if (divisions > 1 && size > kGranule * divisions) {
    const size_t step = std::bit_floor(size) / divisions;
    if (step >= kGranule) return RoundToGranule(RoundUp(size, step));
  }
  return RoundToGranule(size);
}

size_t SegmentSize(size_t rounded, const AllocatorConfig& config) {
  if (rounded <= kSmallLimit) return kSmallSegment;
  if (rounded >= kOwnSegment) return RoundUp(rounded, kSegmentStep);
  return RoundUp(std::max(rounded, config.large_segment_size), kSegmentStep);
}

bool WorthSplitting(size_t rest, size_t rounded, bool expandable, const AllocatorConfig& config) {
  if (rounded <= kSmallLimit || expandable) return rest >= kGranule;
  return rounded < config.max_split_size && rest > kSmallLimit;
}

bool MayServe(size_t block, size_t rounded, const AllocatorConfig& config) {
  if (rounded < config.max_split_size) return block < config.max_split_size;
  return block < rounded + config.max_non_split_rounding_size;
}

}  // namespace torch_fl::runtime
