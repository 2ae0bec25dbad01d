// SPDX-License-Identifier: Apache-2.0
// Sizes: what a request is rounded to, how large a segment is, when a block is split. Pure functions.
#pragma once

#include <cstddef>

#include "runtime/allocator.h"

namespace torch_fl::runtime {

inline constexpr size_t kGranule = 512;                 // every block size is a multiple of it
inline constexpr size_t kSmallLimit = size_t{1} << 20;  // larger blocks live in the large pool
inline constexpr size_t kSmallSegment = size_t{2} << 20;
inline constexpr size_t kOwnSegment = size_t{10} << 20;  // from here on a request gets a segment that fits it
inline constexpr size_t kSegmentStep = size_t{2} << 20;
inline constexpr size_t kMaxRequest = size_t{1} << 47;  // more than any address space has

constexpr size_t RoundUp(size_t size, size_t step) { return (size + step - 1) / step * step; }
constexpr size_t RoundToGranule(size_t size) { return (size + kGranule - 1) & ~(kGranule - 1); }
constexpr PoolClass ClassOf(size_t rounded) { return rounded <= kSmallLimit ? kSmallPool : kLargePool; }

// `size` is 1 .. kMaxRequest.
size_t RoundRequest(size_t size, const AllocatorConfig& config);
size_t SegmentSize(size_t rounded, const AllocatorConfig& config);
// Whether `rest`, what a block has beyond the `rounded` bytes of a request, becomes a block of its own.
bool WorthSplitting(size_t rest, size_t rounded, bool expandable, const AllocatorConfig& config);
// Whether a free block may serve the request: oversize blocks are kept for oversize requests of nearly their size.
bool MayServe(size_t block, size_t rounded, const AllocatorConfig& config);

}  // namespace torch_fl::runtime
