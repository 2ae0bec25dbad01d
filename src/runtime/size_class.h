// SPDX-License-Identifier: Apache-2.0
// Block sizes of the pool: multiples of 512 bytes up to 8 KiB, then eight sizes for each doubling, so that no block is
// more than 12.5 % larger than what was asked for (beyond the 512 byte granule).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace torch_fl::runtime {

inline constexpr size_t kGranule = 512;
inline constexpr int kLinearClasses = 16;
inline constexpr size_t kMaxRequest = size_t{1} << 47;  // more than any address space has
inline constexpr int kClassCount = kLinearClasses + 34 * 8;

// `size` is 1 .. kMaxRequest.
constexpr int SizeClassOf(size_t size) {
  const uint64_t last = (size - 1) / kGranule;  // index of the last granule needed
  if (last < kLinearClasses) return static_cast<int>(last);
  const int octave = 63 - std::countl_zero(last);  // last is in [2^octave, 2^(octave+1)), octave >= 4
  const auto step = static_cast<int>((last - (uint64_t{1} << octave)) >> (octave - 3));
  return kLinearClasses + (octave - 4) * 8 + step;
}

constexpr size_t SizeOfClass(int size_class) {
  if (size_class < kLinearClasses) return static_cast<size_t>(size_class + 1) * kGranule;
  const int octave = (size_class - kLinearClasses) / 8 + 4;
  const int step = (size_class - kLinearClasses) % 8;
  return ((size_t{1} << octave) + (static_cast<size_t>(step + 1) << (octave - 3))) * kGranule;
}

static_assert(SizeClassOf(1) == 0 && SizeClassOf(512) == 0 && SizeClassOf(513) == 1);
static_assert(SizeOfClass(SizeClassOf(8192)) == 8192 && SizeOfClass(SizeClassOf(8193)) == 9216);
static_assert(SizeOfClass(SizeClassOf(size_t{1} << 30)) == size_t{1} << 30);
static_assert(SizeClassOf(kMaxRequest) < kClassCount);

}  // namespace torch_fl::runtime
