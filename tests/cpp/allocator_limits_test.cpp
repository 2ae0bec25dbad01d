// SPDX-License-Identifier: Apache-2.0
// Segments, merging, limits and what happens when memory runs out.
#include <cstring>

#include "allocator_fixture.h"

namespace torch_fl::test {
namespace {

using runtime::Allocate;
using runtime::AllocatorConfig;
using runtime::Free;
using runtime::GetMemoryStats;

char* At(void* block, size_t offset) { return static_cast<char*>(block) + offset; }

TEST(AllocatorSegments, SizesByRequest) {
  InChild({}, [] {
    const auto grows_by = [](size_t request) {
      runtime::EmptyCache();
      const int64_t before = Reserved();
      void* block = Allocate(0, request);
      const int64_t grown = Reserved() - before;
      Free(block);
      return grown;
    };
    EXPECT_EQ(grows_by(1), 2 << 20);
    EXPECT_EQ(grows_by(kMiB), 2 << 20);
    EXPECT_EQ(grows_by(kMiB + 1), 20 << 20);
    EXPECT_EQ(grows_by(10 * kMiB - 512), 20 << 20);
    EXPECT_EQ(grows_by(10 * kMiB), 10 << 20);
    EXPECT_EQ(grows_by(31 * kMiB), 32 << 20);
  });
}

TEST(AllocatorSegments, LargeBlocksAreCutAndMerged) {
  InChild({}, [] {
    void* a = Allocate(0, 4 * kMiB);
    void* b = Allocate(0, 6 * kMiB);
    void* c = Allocate(0, 9 * kMiB);
    EXPECT_EQ(b, At(a, 4 * kMiB));
    EXPECT_EQ(c, At(a, 10 * kMiB));
    EXPECT_EQ(Reserved(), 20 << 20) << "one segment holds all three";
    auto stats = GetMemoryStats(0);
    EXPECT_EQ(stats.allocation[runtime::kLargePool].current, 3);
    EXPECT_EQ(Total(stats.inactive_split_bytes).current, 0) << "the last MiB is not worth a block";
    EXPECT_EQ(Total(stats.allocated_bytes).current, 20 << 20);
    Free(a);
    Free(c);
    EXPECT_EQ(Total(GetMemoryStats(0).inactive_split).current, 2);
    ExpectConsistent();
    Free(b);
    stats = GetMemoryStats(0);
    EXPECT_EQ(Total(stats.inactive_split).current, 0) << "a whole segment again";
    EXPECT_EQ(Total(stats.segment).current, 1);
    EXPECT_EQ(Allocate(0, 9 * kMiB), a);
    ExpectConsistent();
  });
}

TEST(AllocatorSegments, BestFit) {
  InChild({}, [] {
    void* five = Allocate(0, 5 * kMiB);
    void* between = Allocate(0, 2 * kMiB);
    void* three = Allocate(0, 3 * kMiB);
    void* after = Allocate(0, 2 * kMiB);
    Free(five);
    Free(three);
    EXPECT_EQ(Allocate(0, 2 * kMiB + 512 * kKiB), three) << "the smallest that is large enough";
    EXPECT_EQ(Allocate(0, 4 * kMiB), five);
    Free(between);
    Free(after);
    ExpectConsistent();
  });
}

// Quick lists are merged before another segment is asked for, for statistics and for EmptyCache.
TEST(AllocatorSegments, QuickListsMergeBeforeGrowing) {
  InChild({}, [] {
    std::vector<void*> blocks;
    for (int i = 0; i < 4096; ++i) blocks.push_back(Allocate(0, 512));
    EXPECT_EQ(Reserved(), 2 << 20);
    for (void* block : blocks) Free(block);
    void* half = Allocate(0, kMiB);
    void* other = Allocate(0, kMiB);
    EXPECT_EQ(Reserved(), 2 << 20) << "512-byte blocks became two of 1 MiB";
    Free(half);
    Free(other);
    const auto snapshot = runtime::TakeMemorySnapshot();
    ASSERT_EQ(snapshot.segments.size(), 1u);
    EXPECT_EQ(snapshot.segments[0].blocks.size(), 1u);
    for (void*& block : blocks) block = Allocate(0, 512);
    for (void* block : blocks) Free(block);
    runtime::EmptyCache();
    EXPECT_EQ(Reserved(), 0);
  });
}

TEST(AllocatorSegments, SmallAndLargeDoNotMix) {
  InChild({}, [] {
    Free(Allocate(0, 4 * kMiB));
    Allocate(0, 100);
    const auto stats = GetMemoryStats(0);
    EXPECT_EQ(stats.reserved_bytes[runtime::kSmallPool].current, 2 << 20);
    EXPECT_EQ(stats.reserved_bytes[runtime::kLargePool].current, 20 << 20);
    EXPECT_EQ(stats.segment[runtime::kSmallPool].current, 1);
    EXPECT_EQ(Total(stats.segment).current, 2);
  });
}

TEST(AllocatorLimits, FractionCapsWhatIsReserved) {
  InChild({{"FLAGOS_HOST_MEMORY", "128M"}}, [] {
    EXPECT_EQ(runtime::GetMemoryFraction(0), 1.0);
    runtime::SetMemoryFraction(0, 0.5);
    EXPECT_EQ(runtime::GetMemoryFraction(0), 0.5);
    EXPECT_FALSE(runtime::HasContext(0)) << "a limit needs no context";
    void* held = Allocate(0, 30 * kMiB);
    void* cached = Allocate(0, 20 * kMiB);
    Free(cached);
    const std::string text = ErrorOf([] { Allocate(0, 40 * kMiB); }, FLAGOS_OUT_OF_MEMORY);
    EXPECT_EQ(text,
              "flagos out of memory. Tried to allocate 40.00 MiB. Device 0 has a total capacity of 128.00 MiB of which "
              "98.00 MiB is free. 64.00 MiB allowed; Of the allocated memory 30.00 MiB is allocated by PyTorch, and 0 "
              "bytes is reserved by PyTorch but unallocated.");
    auto stats = GetMemoryStats(0);
    EXPECT_EQ(stats.num_ooms, 1);
    EXPECT_EQ(stats.num_alloc_retries, 1);
    // The caller frees something and goes on.
    Free(held);
    void* block = Allocate(0, 60 * kMiB);
    std::memset(View(block), 1, 60 * kMiB);
    Free(block);
    runtime::SetMemoryFraction(0, 1);
    Free(Allocate(0, 120 * kMiB));
    ExpectConsistent();
    for (const double bad : {0.0, -0.1, 1.5}) {
      ErrorOf([&] { runtime::SetMemoryFraction(0, bad); }, FLAGOS_INVALID_VALUE);
    }
  });
}

TEST(AllocatorLimits, TheCapLeavesRoomForAnExactFit) {
  InChild({{"FLAGOS_HOST_MEMORY", "100M"}}, [] {
    runtime::SetMemoryFraction(0, 0.05);
    void* block = Allocate(0, 4 * kMiB);  // its usual segment has 20 MiB
    EXPECT_EQ(Reserved(), 4 << 20);
    ErrorOf([] { Allocate(0, 2 * kMiB); }, FLAGOS_OUT_OF_MEMORY);
    Free(block);
    ExpectConsistent();
  });
}

TEST(AllocatorLimits, OversizeBlocksAreNotShared) {
  InChild({{"FLAGOS_HOST_MEMORY", "256M"}}, [] {
    AllocatorConfig config;
    config.max_split_size = 40 * kMiB;
    runtime::SetAllocatorConfig(config);
    EXPECT_EQ(runtime::GetAllocatorConfig().max_split_size, 40 * kMiB);
    void* oversize = Allocate(0, 80 * kMiB);
    auto stats = GetMemoryStats(0);
    EXPECT_EQ(stats.max_split_size, 40 << 20);
    EXPECT_EQ(stats.oversize_allocations.current, 1);
    EXPECT_EQ(stats.oversize_segments.current, 1);
    Free(oversize);
    EXPECT_EQ(GetMemoryStats(0).oversize_allocations.current, 0);
    void* small = Allocate(0, 12 * kMiB);
    EXPECT_NE(small, oversize);
    EXPECT_EQ(Reserved(), 92 << 20);
    EXPECT_EQ(Allocate(0, 70 * kMiB), oversize) << "near enough";
    EXPECT_EQ(Total(GetMemoryStats(0).inactive_split).current, 0) << "and not cut";
    Free(oversize);
    EXPECT_NE(Allocate(0, 44 * kMiB), oversize) << "more than 20 MiB too large";
    ExpectConsistent();
  });
}

TEST(AllocatorLimits, OversizeBlocksGoFirstWhenMemoryIsShort) {
  InChild({{"FLAGOS_HOST_MEMORY", "200M"}}, [] {
    AllocatorConfig config;
    config.max_split_size = 40 * kMiB;
    runtime::SetAllocatorConfig(config);
    void* usual = Allocate(0, 20 * kMiB);
    void* first = Allocate(0, 50 * kMiB);
    void* second = Allocate(0, 80 * kMiB);
    Free(usual);
    Free(first);
    Free(second);
    Allocate(0, 100 * kMiB);
    const auto stats = GetMemoryStats(0);
    EXPECT_EQ(stats.num_alloc_retries, 0) << "no need to give everything back";
    EXPECT_EQ(Total(stats.reserved_bytes).current, 120 << 20);
    EXPECT_EQ(stats.oversize_segments.freed, 2);
  });
}

TEST(AllocatorLimits, GarbageCollectionTakesTheOldest) {
  InChild({{"FLAGOS_HOST_MEMORY", "200M"}}, [] {
    AllocatorConfig config;
    config.garbage_collection_threshold = 0.5;
    runtime::SetAllocatorConfig(config);
    void* old = Allocate(0, 50 * kMiB);
    void* young = Allocate(0, 60 * kMiB);
    void* busy = Allocate(0, 2 * kMiB);  // 20 MiB
    Free(old);
    Free(busy);
    for (int i = 0; i < 5; ++i) Free(Allocate(0, 2 * kMiB));  // time goes by
    Free(young);
    ASSERT_EQ(Reserved(), 130 << 20);
    void* next = Allocate(0, 62 * kMiB);
    const auto stats = GetMemoryStats(0);
    EXPECT_EQ(Total(stats.reserved_bytes).current, (130 - 50 + 62) << 20) << "the old block paid for it";
    EXPECT_EQ(stats.num_alloc_retries, 0);
    EXPECT_EQ(Allocate(0, 60 * kMiB), young);
    Free(next);
    ExpectConsistent();
  });
}

TEST(AllocatorLimits, RoundupDivisions) {
  InChild({}, [] {
    AllocatorConfig config;
    config.roundup_power2_divisions.assign(16, 4);
    runtime::SetAllocatorConfig(config);
    Free(Allocate(0, 5000));
    Allocate(0, 5000);
    EXPECT_EQ(Total(GetMemoryStats(0).allocated_bytes).current, 5120);
    Allocate(0, 9 * kMiB);
    EXPECT_EQ(GetMemoryStats(0).allocated_bytes[runtime::kLargePool].current, 10 << 20);
    runtime::SetAllocatorConfig({});
    Allocate(0, 9 * kMiB);
    EXPECT_EQ(GetMemoryStats(0).allocated_bytes[runtime::kLargePool].current, 19 << 20);
  });
}

TEST(AllocatorLimits, SettingsThatMakeNoSense) {
  InChild({}, [] {
    AllocatorConfig config;
    config.max_split_size = kMiB;
    EXPECT_EQ(ErrorOf([&] { runtime::SetAllocatorConfig(config); }, FLAGOS_INVALID_VALUE),
              "allocator settings: max_split_size must be larger than 20 MiB, got 1048576 bytes");
    config = {};
    config.garbage_collection_threshold = 1;
    ErrorOf([&] { runtime::SetAllocatorConfig(config); }, FLAGOS_INVALID_VALUE);
    config = {};
    config.roundup_power2_divisions = {3};
    ErrorOf([&] { runtime::SetAllocatorConfig(config); }, FLAGOS_INVALID_VALUE);
    config = {};
    config.large_segment_size = kMiB;
    ErrorOf([&] { runtime::SetAllocatorConfig(config); }, FLAGOS_INVALID_VALUE);
  });
}

TEST(AllocatorLimits, MemoryThatCannotBeGivenBackIsAnError) {
  InChild({{"FLAGOS_DRIVER_PLUGIN", kFaultyDriver}}, [] {
    void* kept = Allocate(0, 100);
    Free(Allocate(0, 30 * kMiB));
    Fault("memory_free") = 1;
    const std::string text = ErrorOf([] { runtime::EmptyCache(); }, FLAGOS_DEVICE_LOST);
    EXPECT_NE(text.find("memory_free"), std::string::npos) << text;
    Free(kept);
    Free(Allocate(0, 20 * kMiB));
    ExpectConsistent();
  });
}

}  // namespace
}  // namespace torch_fl::test
