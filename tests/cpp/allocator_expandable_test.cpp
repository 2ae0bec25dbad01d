// SPDX-License-Identifier: Apache-2.0
// Expandable segments.
#include <cstring>
#include <thread>

#include "allocator_fixture.h"

namespace torch_fl::test {
namespace {

using runtime::Allocate;
using runtime::AllocatorConfig;
using runtime::Free;
using runtime::GetMemoryStats;

void UseExpandable() {
  AllocatorConfig config;
  config.expandable_segments = true;
  runtime::SetAllocatorConfig(config);
}

char* At(void* block, size_t offset) { return static_cast<char*>(block) + offset; }

TEST(AllocatorExpandable, OneSegmentGrowsAndShrinks) {
  for (const char* protect : {"0", "1"}) {
    InChild({{"FLAGOS_HOST_MEMORY", "512M"}, {"FLAGOS_HOST_PROTECT", protect}}, [] {
      UseExpandable();
      void* a = Allocate(0, 30 * kMiB);
      EXPECT_EQ(Reserved(), 40 << 20) << "two steps of 20 MiB";
      void* b = Allocate(0, 50 * kMiB);
      EXPECT_EQ(b, At(a, 30 * kMiB));
      EXPECT_EQ(Reserved(), 80 << 20) << "the 10 MiB left and two more steps";
      std::memset(View(a), 1, 30 * kMiB);
      std::memset(View(b), 2, 50 * kMiB);
      EXPECT_EQ(View(a)[30 * kMiB - 1], 1);
      auto stats = GetMemoryStats(0);
      EXPECT_EQ(Total(stats.segment).current, 1);
      EXPECT_EQ(stats.num_device_alloc, 4);
      auto snapshot = runtime::TakeMemorySnapshot();
      ASSERT_EQ(snapshot.segments.size(), 1u);
      EXPECT_TRUE(snapshot.segments[0].is_expandable);
      EXPECT_EQ(snapshot.segments[0].total_size, 80 * kMiB);
      ExpectConsistent();
      // What two ordinary segments could not serve.
      Free(a);
      Free(b);
      EXPECT_EQ(Allocate(0, 75 * kMiB), a);
      EXPECT_EQ(Reserved(), 80 << 20);
      Free(a);
      void* c = Allocate(0, 30 * kMiB);
      runtime::EmptyCache();
      EXPECT_EQ(Reserved(), 40 << 20) << "what lies free at the end";
      ExpectConsistent();
      Free(c);
      runtime::EmptyCache();
      EXPECT_EQ(Reserved(), 0);
      stats = GetMemoryStats(0);
      EXPECT_EQ(Total(stats.segment).current, 0);
      EXPECT_EQ(stats.num_device_alloc, stats.num_device_free);
      uint64_t free_bytes = 0;
      uint64_t total_bytes = 0;
      runtime::DeviceMemory(0, &free_bytes, &total_bytes);
      EXPECT_EQ(free_bytes, total_bytes);
      Free(Allocate(0, 30 * kMiB));
      ExpectConsistent();
    });
  }
}

TEST(AllocatorExpandable, SmallBlocksHaveTheirOwn) {
  InChild({{"FLAGOS_HOST_MEMORY", "512M"}}, [] {
    UseExpandable();
    std::vector<void*> blocks;
    for (int i = 0; i < 5000; ++i) blocks.push_back(Allocate(0, 1000));
    Allocate(0, 5 * kMiB);
    EXPECT_EQ(GetMemoryStats(0).reserved_bytes[runtime::kSmallPool].current, 6 << 20);
    EXPECT_EQ(GetMemoryStats(0).reserved_bytes[runtime::kLargePool].current, 20 << 20);
    for (size_t i = 0; i < blocks.size(); i += 2) Free(blocks[i]);
    ExpectConsistent();
    for (size_t i = 1; i < blocks.size(); i += 2) Free(blocks[i]);
    ExpectConsistent();
    runtime::EmptyCache();
    EXPECT_EQ(GetMemoryStats(0).reserved_bytes[runtime::kSmallPool].current, 0);
  });
}

TEST(AllocatorExpandable, TheLastBytesAndTheCap) {
  InChild({{"FLAGOS_HOST_MEMORY", "64M"}}, [] {
    UseExpandable();
    void* first = Allocate(0, 45 * kMiB);
    EXPECT_EQ(Reserved(), 60 << 20);
    void* second = Allocate(0, 18 * kMiB);
    EXPECT_EQ(Reserved(), 64 << 20) << "a smaller step than usual";
    ErrorOf([] { Allocate(0, 2 * kMiB); }, FLAGOS_OUT_OF_MEMORY);
    ExpectConsistent();
    Free(first);
    Free(second);
    runtime::EmptyCache();
    EXPECT_EQ(Reserved(), 0);
    runtime::SetMemoryFraction(0, 0.5);
    Free(Allocate(0, 32 * kMiB));
    ErrorOf([] { Allocate(0, 33 * kMiB); }, FLAGOS_OUT_OF_MEMORY);
    ExpectConsistent();
  });
}

TEST(AllocatorExpandable, StreamsHaveTheirOwn) {
  InChild({{"FLAGOS_HOST_MEMORY", "512M"}}, [] {
    UseExpandable();
    Allocate(0, 5 * kMiB);
    const OnStream on(runtime::StreamFromPool(0, 0));
    Allocate(0, 5 * kMiB);
    const auto snapshot = runtime::TakeMemorySnapshot();
    ASSERT_EQ(snapshot.segments.size(), 2u);
    EXPECT_NE(snapshot.segments[0].stream, snapshot.segments[1].stream);
  });
}

TEST(AllocatorExpandable, Threads) {
  InChild({{"FLAGOS_HOST_MEMORY", "4G"}}, [] {
    UseExpandable();
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 4; ++seed) {
      threads.emplace_back([seed] {
        unsigned state = seed;
        std::vector<std::pair<void*, size_t>> mine;
        for (int i = 0; i < 300; ++i) {
          state = state * 1664525 + 1013904223;
          if (i % 40 == 39) runtime::EmptyCache();
          if (mine.size() < 8 && (state >> 16) % 3 != 0) {
            const size_t size = 1 + (state >> 4) % (24 * kMiB);
            void* block = Allocate(0, size);
            View(block)[0] = View(block)[size - 1] = static_cast<unsigned char>(seed);
            mine.emplace_back(block, size);
          } else if (!mine.empty()) {
            auto [block, size] = mine.back();
            mine.pop_back();
            ASSERT_EQ(View(block)[0], seed);
            ASSERT_EQ(View(block)[size - 1], seed);
            Free(block);
          }
        }
        for (auto [block, size] : mine) Free(block);
      });
    }
    for (auto& thread : threads) thread.join();
    ExpectConsistent();
    runtime::EmptyCache();
    EXPECT_EQ(Reserved(), 0);
  });
}

TEST(AllocatorExpandable, IgnoredWhereTheDriverCannotMap) {
  InChild({{"FLAGOS_DRIVER_PLUGIN", kFaultyDriver}, {"FIXTURE_NO_MAPPING", "1"}}, [] {
    testing::internal::CaptureStderr();
    UseExpandable();
    Allocate(0, 5 * kMiB);
    Allocate(0, 20 * kMiB);
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_EQ(text, "torch_fl: expandable_segments is ignored: driver faulty cannot map memory\n") << "once";
    EXPECT_FALSE(runtime::TakeMemorySnapshot().segments.at(0).is_expandable);
  });
}

TEST(AllocatorExpandable, AMappingThatFailsLeavesNothingBehind) {
  InChild({{"FLAGOS_DRIVER_PLUGIN", kFaultyDriver}}, [] {
    UseExpandable();
    void* first = Allocate(0, 5 * kMiB);
    Fault("memory_map") = 1;
    const std::string text = ErrorOf([] { Allocate(0, 30 * kMiB); }, FLAGOS_DEVICE_LOST);
    EXPECT_NE(text.find("memory_map"), std::string::npos);
    ExpectConsistent();
    Free(Allocate(0, 30 * kMiB));
    Free(first);
    runtime::EmptyCache();
    EXPECT_EQ(Reserved(), 0);
  });
}

}  // namespace
}  // namespace torch_fl::test
