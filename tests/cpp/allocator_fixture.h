// SPDX-License-Identifier: Apache-2.0
// What the allocator's tests share.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <string>

#include "child.h"
#include "gate.h"
#include "runtime/allocator.h"

namespace torch_fl::test {

inline constexpr size_t kKiB = size_t{1} << 10;
inline constexpr size_t kMiB = size_t{1} << 20;

inline runtime::Stat Total(const runtime::StatArray& stats) { return stats[runtime::kAllPools]; }
inline int64_t Reserved(int device = 0) { return Total(runtime::GetMemoryStats(device).reserved_bytes).current; }

// Makes the stream current for a scope.
class OnStream {
 public:
  explicit OnStream(runtime::Stream* stream) : previous_(runtime::ExchangeCurrentStream(stream)) {}
  ~OnStream() { runtime::ExchangeCurrentStream(previous_); }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  runtime::Stream* previous_;
};

inline const char* const kFaultyDriver = TEST_FIXTURES "/libtorch_fl_driver_faulty.so";
// A counter of the faulty driver, which is the active one.
inline std::atomic<int>& Fault(const char* name) {
  runtime::DeviceCount();
  void* library = dlopen(kFaultyDriver, RTLD_NOW | RTLD_NOLOAD);
  void* symbol = library != nullptr ? dlsym(library, (std::string("fixture_fail_") + name).c_str()) : nullptr;
  EXPECT_NE(symbol, nullptr) << name;
  static std::atomic<int> none{0};
  return symbol != nullptr ? *static_cast<std::atomic<int>*>(symbol) : none;
}

// The blocks of every segment lie one behind the other and fill it, and the sums are what the statistics say.
inline void ExpectConsistent(int device = 0) {
  const runtime::MemoryStats stats = runtime::GetMemoryStats(device);
  const runtime::MemorySnapshot snapshot = runtime::TakeMemorySnapshot();
  int64_t segments = 0, reserved = 0, allocated = 0, active = 0, requested = 0;
  int64_t live = 0, used = 0, split = 0, split_bytes = 0;
  for (const runtime::SegmentSnapshot& segment : snapshot.segments) {
    if (segment.device != device) continue;
    ++segments;
    reserved += static_cast<int64_t>(segment.total_size);
    allocated += static_cast<int64_t>(segment.allocated_size);
    active += static_cast<int64_t>(segment.active_size);
    uint64_t address = segment.address;
    bool free_before = false;
    for (const runtime::BlockSnapshot& block : segment.blocks) {
      ASSERT_EQ(block.address, address);
      ASSERT_GT(block.size, 0u);
      ASSERT_EQ(block.size % 512, 0u);
      ASSERT_LE(block.requested_size, block.size);
      address += block.size;
      const bool free = block.state == runtime::BlockState::kInactive;
      ASSERT_FALSE(free && free_before) << "free neighbours are merged";
      free_before = free;
      if (free && segment.blocks.size() > 1) {
        ++split;
        split_bytes += static_cast<int64_t>(block.size);
      }
      if (!free) ++used;
      if (block.state == runtime::BlockState::kActiveAllocated) {
        ++live;
        requested += static_cast<int64_t>(block.requested_size);
      }
    }
    ASSERT_EQ(address, segment.address + segment.total_size);
  }
  EXPECT_EQ(Total(stats.segment).current, segments);
  EXPECT_EQ(Total(stats.reserved_bytes).current, reserved);
  EXPECT_EQ(Total(stats.allocated_bytes).current, allocated);
  EXPECT_EQ(Total(stats.active_bytes).current, active);
  EXPECT_EQ(Total(stats.requested_bytes).current, requested);
  EXPECT_EQ(Total(stats.allocation).current, live);
  EXPECT_EQ(Total(stats.active).current, used);
  EXPECT_EQ(Total(stats.inactive_split).current, split);
  EXPECT_EQ(Total(stats.inactive_split_bytes).current, split_bytes);
}

}  // namespace torch_fl::test
