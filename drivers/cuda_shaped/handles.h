// SPDX-License-Identifier: Apache-2.0
// Streams and events as callers know them: numbers of ours, never the vendor's pointers, so that a destroyed, foreign or
// NULL handle is found out without reading memory through it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

namespace flagos_cuda_shaped {

// What a handle stands for. A copy: it stays readable whatever happens to the handle.
struct Handle {
  bool valid = false;
  void* native = nullptr;
  int device = -1;
  uint32_t flags = 0;
};

// Slots in chunks that never move or die. A handle is generation, slot and kind; a slot's generation is odd while it is
// in use and never comes back. Finding takes no lock.
class HandleTable {
 public:
  explicit constexpr HandleTable(uintptr_t kind) : kind_(kind) {}

  // Throws std::bad_alloc when there is no room.
  uintptr_t Insert(void* native, int device, uint32_t flags) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) Grow();
    const uint32_t index = free_.back();
    free_.pop_back();
    Slot& slot = SlotAt(index);
    // Released, so that a reader who sees any of these also sees that the slot's last handle had ended.
    slot.native.store(native, std::memory_order_release);
    slot.device.store(device, std::memory_order_release);
    slot.flags.store(flags, std::memory_order_release);
    const uint32_t generation = slot.generation.load(std::memory_order_relaxed) + 1;
    slot.generation.store(generation, std::memory_order_release);
    return (uintptr_t{generation} << 32) | (uintptr_t{index} << kKindBits) | kind_;
  }

  Handle Find(uintptr_t number) const {
    const Slot* const slot = SlotOf(number);
    Handle handle;
    if (slot == nullptr || slot->generation.load(std::memory_order_acquire) != GenerationOf(number)) return handle;
    handle.native = slot->native.load(std::memory_order_acquire);
    handle.device = slot->device.load(std::memory_order_acquire);
    handle.flags = slot->flags.load(std::memory_order_acquire);
    // Destroyed and reused meanwhile: what was read may be of both.
    handle.valid = slot->generation.load(std::memory_order_relaxed) == GenerationOf(number);
    return handle;
  }

  // Adds flags to a live handle.
  void Mark(uintptr_t number, uint32_t flags) {
    Slot* const slot = SlotOf(number);
    if (slot != nullptr) slot->flags.fetch_or(flags, std::memory_order_relaxed);
  }

  // Ends the handle; of several threads that try, one gets it.
  Handle Take(uintptr_t number) {
    const std::lock_guard lock(mutex_);
    const Handle handle = Find(number);
    if (!handle.valid) return handle;
    SlotOf(number)->generation.store(GenerationOf(number) + 1, std::memory_order_release);
    free_.push_back(IndexOf(number));
    return handle;
  }

 private:
  static constexpr uintptr_t kKindBits = 4;
  static constexpr uint32_t kChunk = 1024;
  static constexpr uint32_t kMaxChunks = 4096;

  struct Slot {
    std::atomic<uint32_t> generation{0};
    std::atomic<uint32_t> flags{0};
    std::atomic<int> device{-1};
    std::atomic<void*> native{nullptr};
  };
  using Chunk = std::array<Slot, kChunk>;

  static uint32_t GenerationOf(uintptr_t number) { return static_cast<uint32_t>(number >> 32); }
  static uint32_t IndexOf(uintptr_t number) { return static_cast<uint32_t>(number) >> kKindBits; }
  Slot& SlotAt(uint32_t index) const {
    return (*chunks_[index / kChunk].load(std::memory_order_acquire))[index % kChunk];
  }
  Slot* SlotOf(uintptr_t number) const {
    const uint32_t index = IndexOf(number);
    if ((number & ((1u << kKindBits) - 1)) != kind_ || GenerationOf(number) % 2 == 0) return nullptr;
    if (index / kChunk >= kMaxChunks || chunks_[index / kChunk].load(std::memory_order_acquire) == nullptr)
      return nullptr;
    return &SlotAt(index);
  }

  void Grow() {
    if (chunk_count_ == kMaxChunks) throw std::bad_alloc();
    free_.reserve(size_t{kChunk} * (chunk_count_ + 1));  // so that Take cannot fail
    auto* const chunk = new Chunk;
    chunks_[chunk_count_].store(chunk, std::memory_order_release);
    for (uint32_t i = kChunk; i > 0; --i) free_.push_back(chunk_count_ * kChunk + i - 1);
    ++chunk_count_;
  }

  const uintptr_t kind_;
  mutable std::mutex mutex_;  // inserting and ending
  std::array<std::atomic<Chunk*>, kMaxChunks> chunks_{};
  uint32_t chunk_count_ = 0;
  std::vector<uint32_t> free_;
};

}  // namespace flagos_cuda_shaped
