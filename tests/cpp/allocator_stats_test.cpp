// SPDX-License-Identifier: Apache-2.0
// Every statistic beside a slow model that knows the rules and nothing of the allocator.
#include <algorithm>
#include <map>
#include <random>

#include "allocator_fixture.h"
#include "runtime/stream.h"

namespace torch_fl::test {
namespace {

using runtime::Allocate;
using runtime::Free;
using runtime::Stat;
using runtime::StatArray;
using runtime::Stream;

// What callers hold and what streams still use, recounted from scratch after every event.
struct Model {
  struct Block {
    int64_t requested = 0;
    int64_t size = 0;
    bool live = true;
  };
  struct Tracked {
    int64_t current = 0, peak = 0, up = 0, down = 0;
    void Set(int64_t value) {
      if (value > current) up += value - current;
      if (value < current) down += current - value;
      current = value;
      peak = std::max(peak, value);
    }
  };
  std::map<void*, Block> blocks;
  std::array<Tracked, 3> allocation, active, allocated, active_bytes, requested;

  void Recount() {
    for (const size_t pool : {size_t{0}, size_t{1}, size_t{2}}) {
      int64_t n = 0, a = 0, bytes = 0, abytes = 0, asked = 0;
      for (const auto& [base, block] : blocks) {
        const bool small = block.size <= (1 << 20);
        if (pool == runtime::kSmallPool && !small) continue;
        if (pool == runtime::kLargePool && small) continue;
        ++a;
        abytes += block.size;
        if (!block.live) continue;
        ++n;
        bytes += block.size;
        asked += block.requested;
      }
      allocation[pool].Set(n);
      active[pool].Set(a);
      allocated[pool].Set(bytes);
      active_bytes[pool].Set(abytes);
      requested[pool].Set(asked);
    }
  }
  void ResetPeaks() {
    for (auto* all : {&allocation, &active, &allocated, &active_bytes, &requested}) {
      for (Tracked& one : *all) one.peak = one.current;
    }
  }
  void ResetAccumulated() {
    for (auto* all : {&allocation, &active, &allocated, &active_bytes, &requested}) {
      for (Tracked& one : *all) one.up = one.down = 0;
    }
  }
};

void ExpectEqual(const StatArray& actual, const std::array<Model::Tracked, 3>& expected, const char* what) {
  for (size_t pool = 0; pool < 3; ++pool) {
    ASSERT_EQ(actual[pool].current, expected[pool].current) << what << " current, pool " << pool;
    ASSERT_EQ(actual[pool].peak, expected[pool].peak) << what << " peak, pool " << pool;
    ASSERT_EQ(actual[pool].allocated, expected[pool].up) << what << " allocated, pool " << pool;
    ASSERT_EQ(actual[pool].freed, expected[pool].down) << what << " freed, pool " << pool;
  }
}

void ExpectSane(const StatArray& stats) {
  for (const Stat& stat : stats) {
    ASSERT_GE(stat.current, 0);
    ASSERT_GE(stat.peak, stat.current);
    ASSERT_GE(stat.freed, 0);
  }
  ASSERT_EQ(stats[0].current, stats[1].current + stats[2].current);
  ASSERT_GE(stats[0].peak, std::max(stats[1].peak, stats[2].peak));
  ASSERT_LE(stats[0].peak, stats[1].peak + stats[2].peak);
}

void Compare(const Model& model) {
  const auto stats = runtime::GetMemoryStats(0);
  ExpectEqual(stats.allocation, model.allocation, "allocation");
  ExpectEqual(stats.active, model.active, "active");
  ExpectEqual(stats.allocated_bytes, model.allocated, "allocated_bytes");
  ExpectEqual(stats.active_bytes, model.active_bytes, "active_bytes");
  ExpectEqual(stats.requested_bytes, model.requested, "requested_bytes");
  for (const auto* array :
       {&stats.segment, &stats.reserved_bytes, &stats.inactive_split, &stats.inactive_split_bytes}) {
    ExpectSane(*array);
  }
  ASSERT_EQ(Total(stats.segment).current, stats.num_device_alloc - stats.num_device_free);
  ASSERT_EQ(stats.num_device_alloc, Total(stats.segment).allocated);
}

void RunRandomly(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random()) % n; };
  Model model;
  Stream* side = runtime::StreamFromPool(0, 0);
  std::vector<void*> live;
  std::vector<void*> pending;
  std::unique_ptr<Gate> gate;
  const auto settle = [&] {  // pending blocks come back
    gate.reset();
    runtime::SynchronizeStream(side);
    runtime::EmptyCache();
    for (void* block : pending) model.blocks.erase(block);
    pending.clear();
    model.Recount();
  };
  for (int step = 0; step < 4000; ++step) {
    const size_t choice = below(100);
    if (choice < 48 && live.size() < 200) {
      constexpr size_t kScales[] = {2000, 60000, size_t{1} << 20, size_t{6} << 20, size_t{24} << 20};
      const size_t size = 1 + below(kScales[below(below(8) == 0 ? 5 : 3)]);
      void* block = Allocate(0, size);
      // The rounded size is read off the snapshot: a large block may keep a rest that is not worth splitting.
      Model::Block known{static_cast<int64_t>(size), static_cast<int64_t>((size + 511) / 512 * 512), true};
      if (size > kMiB) {
        for (const auto& segment : runtime::TakeMemorySnapshot().segments) {
          for (const auto& part : segment.blocks) {
            if (part.address == reinterpret_cast<uint64_t>(block)) known.size = static_cast<int64_t>(part.size);
          }
        }
        ASSERT_LE(known.size, static_cast<int64_t>((size + 511) / 512 * 512 + kMiB));
      }
      model.blocks[block] = known;
      live.push_back(block);
    } else if (choice < 95 && !live.empty()) {
      const size_t index = below(live.size());
      void* block = live[index];
      live[index] = live.back();
      live.pop_back();
      if (choice < 52) {
        if (gate == nullptr) gate = std::make_unique<Gate>(side);
        runtime::RecordStream(block, side);
        model.blocks[block].live = false;
        pending.push_back(block);
      } else {
        model.blocks.erase(block);
      }
      Free(block);
    } else if (choice < 97) {
      settle();
    } else if (choice == 97) {
      runtime::ResetPeakStats(0);
      model.ResetPeaks();
    } else if (choice == 98) {
      runtime::ResetAccumulatedStats(0);
      model.ResetAccumulated();
      settle();  // the driver's counts start from nothing only when nothing is held: not compared from here on
      continue;
    }
    model.Recount();
    if (below(5) == 0) {
      ExpectEqual(runtime::GetMemoryStats(0).allocation, model.allocation, "allocation");
      ExpectEqual(runtime::GetMemoryStats(0).active_bytes, model.active_bytes, "active_bytes");
    }
    if (step % 97 == 0) {
      ExpectEqual(runtime::GetMemoryStats(0).requested_bytes, model.requested, "requested_bytes");
      ExpectEqual(runtime::GetMemoryStats(0).allocated_bytes, model.allocated, "allocated_bytes");
      ExpectEqual(runtime::GetMemoryStats(0).active, model.active, "active");
      ExpectConsistent();
    }
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << ", step " << step;
  }
  settle();
  for (void* block : live) Free(block);
  runtime::EmptyCache();
  EXPECT_EQ(Reserved(), 0);
}

TEST(AllocatorStats, EqualASlowModel) {
  for (const unsigned seed : {1u, 2u, 3u}) {
    InChild({{"FLAGOS_HOST_MEMORY", "8G"}}, [seed] { RunRandomly(seed); });
  }
}

TEST(AllocatorStats, DriverCallsAreCounted) {
  InChild({{"FLAGOS_HOST_MEMORY", "8G"}}, [] {
    Model model;
    std::mt19937 random(7);
    std::vector<void*> live;
    for (int step = 0; step < 500; ++step) {
      if (random() % 2 == 0 || live.empty()) {
        const size_t size = 1 + random() % kMiB;
        live.push_back(Allocate(0, size));
        model.blocks[live.back()] = {static_cast<int64_t>(size), static_cast<int64_t>((size + 511) / 512 * 512), true};
      } else {
        model.blocks.erase(live.back());
        Free(live.back());
        live.pop_back();
      }
      if (step % 50 == 0) runtime::EmptyCache();
      model.Recount();
      Compare(model);
      if (::testing::Test::HasFailure()) FAIL() << "step " << step;
    }
  });
}

// Peaks of free memory, by hand.
TEST(AllocatorStats, InactiveSplit) {
  InChild({}, [] {
    void* a = Allocate(0, 512);
    auto stats = runtime::GetMemoryStats(0);
    EXPECT_EQ(Total(stats.inactive_split).current, 1);
    EXPECT_EQ(Total(stats.inactive_split_bytes).current, static_cast<int64_t>(2 * kMiB - 512));
    void* b = Allocate(0, 512);
    Free(a);
    stats = runtime::GetMemoryStats(0);
    EXPECT_EQ(Total(stats.inactive_split).current, 2);
    EXPECT_EQ(Total(stats.inactive_split).peak, 2);
    EXPECT_EQ(Total(stats.inactive_split_bytes).current, static_cast<int64_t>(2 * kMiB - 512));
    EXPECT_EQ(stats.inactive_split[runtime::kLargePool].peak, 0);
    Free(b);
    stats = runtime::GetMemoryStats(0);
    EXPECT_EQ(Total(stats.inactive_split).current, 0) << "the segment is whole again";
    EXPECT_EQ(Total(stats.inactive_split_bytes).current, 0);
    EXPECT_EQ(Total(stats.inactive_split_bytes).allocated, Total(stats.inactive_split_bytes).freed);
  });
}

TEST(AllocatorStats, OfADeviceNobodyUsed) {
  InChild({}, [] {
    const auto stats = runtime::GetMemoryStats(0);
    EXPECT_EQ(Total(stats.allocation).allocated, 0);
    runtime::ResetPeakStats(0);
    runtime::ResetAccumulatedStats(0);
    EXPECT_EQ(runtime::TakeMemorySnapshot().segments.size(), 0u);
    EXPECT_FALSE(runtime::HasContext(0));
    ErrorOf([] { runtime::GetMemoryStats(3); }, FLAGOS_INVALID_DEVICE);
  });
}

}  // namespace
}  // namespace torch_fl::test
