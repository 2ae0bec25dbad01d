// SPDX-License-Identifier: Apache-2.0
// The process's page map and what its entries mean.
#pragma once

#include "runtime/pool.h"

namespace torch_fl::runtime {

extern PageMap g_page_map;

// An entry is one word: bits 0-5 where the block begins in its 512 bytes, in units of 16; bits 6-47 the Block (aligned
// to 64, in the lower half of the address space); bits 48-55 the device; 0 means no live block.
inline uint64_t EncodeEntry(const Block* block, int device) noexcept {
  const uint64_t residue = (reinterpret_cast<uint64_t>(block->base) % kGranule) / 16;
  return reinterpret_cast<uint64_t>(block) | residue | (static_cast<uint64_t>(device) << 48);
}
inline bool EntryBeginsAt(uint64_t entry, const void* pointer) noexcept {
  return entry != 0 && (entry & 63) * 16 == reinterpret_cast<uint64_t>(pointer) % kGranule;
}
inline Block* EntryBlock(uint64_t entry) noexcept {
  return reinterpret_cast<Block*>(entry & ((uint64_t{1} << 48) - 64));
}
inline int EntryDevice(uint64_t entry) noexcept { return static_cast<int>(entry >> 48); }

}  // namespace torch_fl::runtime
