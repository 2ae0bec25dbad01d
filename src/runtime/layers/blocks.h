// SPDX-License-Identifier: Apache-2.0
// Which addresses of one address space hold memory. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

namespace torch_fl::runtime::layers {

class Blocks {
 public:
  struct Block {
    uintptr_t begin = 0;
    size_t size = 0;
    bool mapped = false;  // by memory_map: touching neighbours count as one
  };

  bool Overlaps(uintptr_t begin, size_t size) const {
    const auto next = blocks_.lower_bound(begin + size);
    return next != blocks_.begin() && End(std::prev(next)->second) > begin;
  }
  void Add(const Block& block) { blocks_.insert_or_assign(block.begin, block); }
  // The block that holds the address.
  std::optional<Block> At(uintptr_t address) const {
    const auto next = blocks_.upper_bound(address);
    if (next == blocks_.begin() || End(std::prev(next)->second) <= address) return std::nullopt;
    return std::prev(next)->second;
  }
  std::optional<Block> Take(uintptr_t begin) {
    const auto found = blocks_.find(begin);
    if (found == blocks_.end()) return std::nullopt;
    const Block block = found->second;
    blocks_.erase(found);
    return block;
  }
  // `size` bytes from `begin` lie in one block, or in mappings that touch.
  bool Holds(uintptr_t begin, size_t size) const {
    auto block = At(begin);
    while (block) {
      const uintptr_t end = End(*block);
      if (size <= end - begin) return true;
      if (!block->mapped) return false;
      const auto next = blocks_.find(end);
      if (next == blocks_.end() || !next->second.mapped) return false;
      block = next->second;
    }
    return false;
  }

 private:
  static uintptr_t End(const Block& block) { return block.begin + block.size; }

  std::map<uintptr_t, Block> blocks_;
};

}  // namespace torch_fl::runtime::layers
