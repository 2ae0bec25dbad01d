// SPDX-License-Identifier: Apache-2.0
// Address -> live block, without locks: a three-level radix tree over address >> 9. Levels are published atomically and
// never freed, so a reader needs no protection and works in a forked child, at exit and beside any writer.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace torch_fl::runtime {

class PageMap {
 public:
  using Slot = std::atomic<uint64_t>;
  static constexpr int kAddressBits = 48;

  // The slot of the 512 bytes around the address, or NULL when nothing was ever stored near it.
  Slot* Find(const void* address) noexcept {
    const uint64_t key = reinterpret_cast<uint64_t>(address) >> kGranuleBits;
    if (key >> (3 * kLevelBits) != 0) return nullptr;
    Middle* middle = root_[key >> (2 * kLevelBits)].load(std::memory_order_acquire);
    if (middle == nullptr) return nullptr;
    Leaf* leaf = (*middle)[(key >> kLevelBits) & kMask].load(std::memory_order_acquire);
    return leaf != nullptr ? &(*leaf)[key & kMask] : nullptr;
  }

  // Makes the levels if needed; NULL for an address beyond kAddressBits.
  Slot* Make(const void* address) {
    const uint64_t key = reinterpret_cast<uint64_t>(address) >> kGranuleBits;
    if (key >> (3 * kLevelBits) != 0) return nullptr;
    Middle& middle = Publish(root_[key >> (2 * kLevelBits)]);
    Leaf& leaf = Publish(middle[(key >> kLevelBits) & kMask]);
    return &leaf[key & kMask];
  }

 private:
  static constexpr int kGranuleBits = 9;
  static constexpr int kLevelBits = 13;
  static constexpr uint64_t kMask = (uint64_t{1} << kLevelBits) - 1;
  static_assert(kGranuleBits + 3 * kLevelBits == kAddressBits);

  using Leaf = std::array<Slot, 1u << kLevelBits>;
  using Middle = std::array<std::atomic<Leaf*>, 1u << kLevelBits>;

  template <class Level>
  static Level& Publish(std::atomic<Level*>& place) {
    if (Level* existing = place.load(std::memory_order_acquire)) return *existing;
    // Zero bytes are what an empty level consists of; from calloc they cost no memory before they are touched.
    auto* fresh = static_cast<Level*>(std::calloc(1, sizeof(Level)));
    if (fresh == nullptr) throw std::bad_alloc();
    Level* expected = nullptr;
    if (place.compare_exchange_strong(expected, fresh, std::memory_order_acq_rel)) return *fresh;
    std::free(fresh);
    return *expected;
  }

  std::array<std::atomic<Middle*>, 1u << kLevelBits> root_{};
};

}  // namespace torch_fl::runtime
