// SPDX-License-Identifier: Apache-2.0
// The pool of one device: free lists by size class over segments of the driver's memory. Not for other layers.
//
// Small blocks (up to 1 MiB) of one class are carved from one segment; a larger block is a segment of its own. A freed
// block returns to the one list of its class, whichever thread frees it, so threads that pass tensors to each other
// reach a steady state. Segments go back to the driver only through ReleaseCached.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>

#include "base/spin_lock.h"
#include "runtime/page_map.h"
#include "runtime/size_class.h"
#include "runtime/stream.h"

namespace torch_fl::runtime {

struct Segment;

// 64-byte alignment leaves the low six bits of its address free for the page map's entry.
struct alignas(64) Block {
  void* base = nullptr;
  size_t size = 0;  // asked for
  uint64_t number = 0;
  const char* op = nullptr;
  Block* next = nullptr;  // free list
  Segment* segment = nullptr;
  Stream* stream = nullptr;  // current one of the allocating thread; NULL: the default stream
  PageMap::Slot* slot = nullptr;
  bool live = false;
};

struct Segment {
  void* base = nullptr;
  size_t bytes = 0;
  size_t block_size = 0;
  int device = 0;
  int size_class = 0;  // kOddClass: fits no class, never reused
  uint32_t count = 0;
  uint32_t live = 0;
  std::unique_ptr<Block[]> blocks;
};

class Pool {
 public:
  explicit Pool(int device);

  void* Allocate(size_t size, const char* op);
  void Free(Block* block, PageMap::Slot* slot) noexcept;
  bool Find(const void* pointer, AllocationInfo* info, bool* live) noexcept;
  // Gives segments without a live block back to the driver; returns how many bytes.
  size_t ReleaseCached();
  MemoryStats Stats();
  void ResetPeaks();
  void ResetAccumulated();

 private:
  Block* Grow(int size_class, size_t size);
  Segment* NewSegment(size_t bytes, size_t block_size, int size_class);
  void* DriverAllocate(size_t bytes);
  Block* Install(Segment* segment);
  [[noreturn]] void ThrowOutOfMemory(size_t size);
  void Poison(const Block& block, uint8_t value);
  bool WaitsFor(const Block& block, const Stream* stream) const noexcept;

  const int device_;
  const bool poison_;
  SpinLock mutex_;  // never held while the driver is called: a driver call may wait for a callback that frees
  std::array<Block*, kClassCount> free_{};
  std::map<uintptr_t, std::unique_ptr<Segment>> segments_;  // by base address
  MemoryStats stats_;
};

}  // namespace torch_fl::runtime
