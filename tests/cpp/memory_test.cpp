// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "child.h"
#include "runtime/allocator.h"

namespace torch_fl::test {
namespace {

using runtime::Allocate;
using runtime::Free;
using runtime::GetMemoryStats;

TEST(Pool, ReusesAndCounts) {
  InChild({}, [] {
    EXPECT_EQ(Allocate(0, 0), nullptr);
    Free(nullptr);
    void* first = Allocate(0, 1000, "test::one");
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
    std::memset(View(first), 1, 1000);
    auto stats = GetMemoryStats(0);
    EXPECT_EQ(stats.allocated_bytes[runtime::kAllPools].current, 1024);
    EXPECT_EQ(stats.requested_bytes[runtime::kAllPools].current, 1000);
    EXPECT_EQ(stats.allocation[runtime::kSmallPool].current, 1);
    EXPECT_EQ(stats.num_device_alloc, 1);
    EXPECT_EQ(stats.reserved_bytes[runtime::kAllPools].current, 2 << 20);
    Free(first);
    EXPECT_EQ(Allocate(0, 1020), first) << "a freed block of the size is taken first";
    void* second = Allocate(0, 1020);
    EXPECT_EQ(second, static_cast<char*>(first) + 1024) << "cut from the rest of the segment";
    stats = GetMemoryStats(0);
    EXPECT_EQ(stats.num_device_alloc, 1) << "small blocks share a segment";
    EXPECT_EQ(stats.allocated_bytes[runtime::kAllPools].peak, 2048);
    EXPECT_EQ(stats.requested_bytes[runtime::kAllPools].peak, 2040);
    Free(first);
    Free(second);
    stats = GetMemoryStats(0);
    EXPECT_EQ(stats.allocated_bytes[runtime::kAllPools].current, 0);
    EXPECT_EQ(stats.allocation[runtime::kAllPools].current, 0);
    EXPECT_EQ(stats.allocation[runtime::kAllPools].allocated, 3);
    EXPECT_EQ(stats.allocation[runtime::kAllPools].freed, 3);
    EXPECT_EQ(stats.allocated_bytes[runtime::kAllPools].allocated, 3 * 1024);
    EXPECT_EQ(stats.allocated_bytes[runtime::kAllPools].freed, 3 * 1024);
    runtime::ResetPeakStats(0);
    EXPECT_EQ(GetMemoryStats(0).allocated_bytes[runtime::kAllPools].peak, 0);
    runtime::ResetAccumulatedStats(0);
    EXPECT_EQ(GetMemoryStats(0).allocation[runtime::kAllPools].allocated, 0);
  });
}

TEST(Pool, BlocksDoNotOverlap) {
  InChild({}, [] {
    std::vector<std::pair<unsigned char*, size_t>> blocks;
    for (size_t i = 0; i < 200; ++i) {
      const size_t size = 1 + (i * 7919) % 40000 + (i % 10 == 0 ? 2u << 20 : 0);
      blocks.emplace_back(View(Allocate(0, size)), size);
      std::memset(blocks.back().first, static_cast<int>(i), size);
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      for (size_t at : {size_t{0}, blocks[i].second / 2, blocks[i].second - 1}) {
        ASSERT_EQ(blocks[i].first[at], i % 256) << i;
      }
    }
  });
}

TEST(Pool, FindAllocation) {
  InChild({}, [] {
    char* block = static_cast<char*>(Allocate(0, 5000, "test::op"));
    runtime::AllocationInfo info;
    for (const size_t offset : {0, 1, 4999}) {
      ASSERT_TRUE(runtime::FindAllocation(block + offset, &info)) << offset;
      EXPECT_EQ(info.base, block);
      EXPECT_EQ(info.size, 5000u);
      EXPECT_EQ(info.device, 0);
      EXPECT_STREQ(info.op, "test::op");
      EXPECT_GT(info.number, 0u);
    }
    EXPECT_FALSE(runtime::FindAllocation(block + 5000, &info)) << "rounding is not the caller's";
    EXPECT_FALSE(runtime::FindAllocation(&info, &info));
    const uint64_t number = info.number;
    Free(block);
    EXPECT_FALSE(runtime::FindAllocation(block, &info));
    ASSERT_EQ(Allocate(0, 5000, nullptr), block);
    ASSERT_TRUE(runtime::FindAllocation(block, &info));
    EXPECT_EQ(info.number, number + 1);
    EXPECT_EQ(info.op, nullptr);
  });
}

TEST(Pool, OwnsBaseAddressesOnly) {
  InChild({{"FLAGOS_HOST_DEVICES", "2"}}, [] {
    char* block = static_cast<char*>(Allocate(1, 5000));
    int device = -1;
    EXPECT_TRUE(runtime::Owns(block, &device));
    EXPECT_EQ(device, 1);
    EXPECT_TRUE(runtime::Owns(block, nullptr));
    EXPECT_FALSE(runtime::Owns(block + 16, &device));
    EXPECT_FALSE(runtime::Owns(block + 512, &device));
    EXPECT_FALSE(runtime::Owns(&device, &device));
    EXPECT_FALSE(runtime::Owns(nullptr, &device));
    EXPECT_FALSE(runtime::Owns(reinterpret_cast<void*>(~uintptr_t{0}), &device));
    Free(block);
    EXPECT_FALSE(runtime::Owns(block, &device));
  });
}

TEST(Pool, MistakesAreIgnoredAndStatsStayRight) {
  InChild({}, [] {
    char* block = static_cast<char*>(Allocate(0, 100));
    Free(block + 16);
    int on_stack = 0;
    Free(&on_stack);
    EXPECT_EQ(GetMemoryStats(0).allocation[runtime::kAllPools].current, 1u);
    Free(block);
    Free(block);
    const auto stats = GetMemoryStats(0);
    EXPECT_EQ(stats.allocation[runtime::kAllPools].current, 0u);
    EXPECT_EQ(stats.allocated_bytes[runtime::kAllPools].current, 0u);
    EXPECT_EQ(stats.allocation[runtime::kAllPools].freed, 1u);
  });
}

TEST(Pool, ProducerAndConsumerReachASteadyState) {
  InChild({}, [] {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<void*> channel;
    bool done = false;
    const auto size_of = [](int step) { return 300 + static_cast<size_t>(step % 5) * 300000; };
    // At most six blocks are alive at once: four in the channel, one in either hand. This is the most they ever need.
    std::vector<void*> most;
    for (int step = 0; step < 5 * 6; ++step) most.push_back(Allocate(0, size_of(step)));
    for (void* block : most) Free(block);
    const int64_t reserved = GetMemoryStats(0).reserved_bytes[runtime::kAllPools].current;
    std::thread consumer([&] {
      std::unique_lock lock(mutex);
      for (;;) {
        changed.wait(lock, [&] { return done || !channel.empty(); });
        if (channel.empty()) return;
        void* block = channel.front();
        channel.pop_front();
        lock.unlock();
        Free(block);
        lock.lock();
        changed.notify_all();
      }
    });
    for (int step = 0; step < 2000; ++step) {
      void* block = Allocate(0, size_of(step));
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return channel.size() < 4; });
      channel.push_back(block);
      changed.notify_all();
    }
    {
      const std::lock_guard lock(mutex);
      done = true;
      changed.notify_all();
    }
    consumer.join();
    EXPECT_EQ(GetMemoryStats(0).reserved_bytes[runtime::kAllPools].current, reserved);
    EXPECT_EQ(GetMemoryStats(0).allocated_bytes[runtime::kAllPools].current, 0u);
  });
}

TEST(Pool, ManyThreads) {
  InChild({}, [] {
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 4; ++seed) {
      threads.emplace_back([seed] {
        std::vector<std::pair<void*, size_t>> mine;
        unsigned state = seed;
        for (int i = 0; i < 3000; ++i) {
          state = state * 1664525 + 1013904223;
          if (mine.size() < 20 && (state >> 16) % 3 != 0) {
            const size_t size = 1 + (state >> 8) % 20000;
            void* block = Allocate(0, size);
            std::memset(View(block), static_cast<int>(seed), size);
            mine.emplace_back(block, size);
          } else if (!mine.empty()) {
            auto [block, size] = mine.back();
            mine.pop_back();
            ASSERT_EQ(View(block)[0], seed);
            ASSERT_EQ(View(block)[size - 1], seed);
            ASSERT_TRUE(runtime::Owns(block, nullptr));
            Free(block);
          }
        }
        for (auto [block, size] : mine) Free(block);
      });
    }
    std::thread cleaner([&] {
      while (!stop.load()) {
        runtime::EmptyCache();
        runtime::AllocationInfo info;
        runtime::FindAllocation(&stop, &info);
        std::this_thread::yield();
      }
    });
    for (auto& thread : threads) thread.join();
    stop.store(true);
    cleaner.join();
    runtime::EmptyCache();
    const auto stats = GetMemoryStats(0);
    EXPECT_EQ(stats.allocated_bytes[runtime::kAllPools].current, 0u);
    EXPECT_EQ(stats.reserved_bytes[runtime::kAllPools].current, 0u);
    EXPECT_EQ(stats.allocation[runtime::kAllPools].allocated, stats.allocation[runtime::kAllPools].freed);
    EXPECT_EQ(stats.num_device_alloc, stats.num_device_free);
  });
}

TEST(Pool, OutOfMemoryAndRecovery) {
  InChild({{"FLAGOS_HOST_MEMORY", "64M"}}, [] {
    void* big = Allocate(0, 40u << 20);
    void* small = Allocate(0, 100);
    const std::string text = ErrorOf([] { Allocate(0, 40u << 20); }, FLAGOS_OUT_OF_MEMORY);
    EXPECT_EQ(
        text,
        "flagos out of memory. Tried to allocate 40.00 MiB. Device 0 has a total capacity of 64.00 MiB of which "
        "22.00 MiB is free. Of the allocated memory 40.00 MiB is allocated by PyTorch, and 2.00 MiB is reserved by "
        "PyTorch but unallocated.");
    auto stats = GetMemoryStats(0);
    EXPECT_EQ(stats.num_ooms, 1u);
    EXPECT_EQ(stats.num_alloc_retries, 1u);
    EXPECT_EQ(stats.allocated_bytes[runtime::kAllPools].current, (40 << 20) + 512);
    Free(big);
    // Cached segments that do not fit are given back before an allocation fails.
    void* other = Allocate(0, 50u << 20);
    EXPECT_NE(other, nullptr);
    Free(other);
    Free(small);
    for (const size_t size : {size_t{1} << 50, ~size_t{0}}) {
      EXPECT_EQ(ErrorOf([&] { Allocate(0, size); }, FLAGOS_OUT_OF_MEMORY).rfind("flagos out of memory. Tried", 0), 0u);
    }
    stats = GetMemoryStats(0);
    EXPECT_EQ(stats.allocated_bytes[runtime::kAllPools].current, 0u);
  });
}

TEST(Pool, TheLastBytesOfADevice) {
  InChild({{"FLAGOS_HOST_MEMORY", "9500K"}}, [] {
    for (int round = 0; round < 2; ++round) {
      void* block = Allocate(0, 9700000);  // the segment would have 20 MiB
      EXPECT_EQ(ErrorOf([] { Allocate(0, 100000); }, FLAGOS_OUT_OF_MEMORY).rfind("flagos out of memory", 0), 0u);
      Free(block);
    }
  });
  InChild({{"FLAGOS_HOST_MEMORY", "1M"}}, [] {
    std::set<void*> blocks;  // a segment does not fit: blocks one by one
    for (int i = 0; i < 100; ++i) blocks.insert(Allocate(0, 8000));
    EXPECT_EQ(blocks.size(), 100u);
  });
}

uint64_t ResidentSharedBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0;
  uint64_t resident = 0;
  uint64_t shared = 0;
  file >> total >> resident >> shared;
  return shared * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST(Pool, EmptyCacheGivesMemoryBack) {
  for (const char* protect : {"0", "1"}) {
    InChild({{"FLAGOS_HOST_MEMORY", "256M"}, {"FLAGOS_HOST_PROTECT", protect}}, [] {
      void* kept = Allocate(0, 64);
      void* block = Allocate(0, 100u << 20);
      const uint64_t before = ResidentSharedBytes();
      std::memset(View(block), 7, 100u << 20);
      EXPECT_GT(ResidentSharedBytes(), before + (90u << 20));
      Free(block);
      runtime::EmptyCache();
      EXPECT_LT(ResidentSharedBytes(), before + (10u << 20));
      EXPECT_EQ(GetMemoryStats(0).reserved_bytes[runtime::kAllPools].current, 2u << 20)
          << "the segment of the live block stays";
      Free(kept);
      runtime::EmptyCache();
      EXPECT_EQ(GetMemoryStats(0).reserved_bytes[runtime::kAllPools].current, 0u);
      uint64_t free_bytes = 0;
      uint64_t total_bytes = 0;
      runtime::DeviceMemory(0, &free_bytes, &total_bytes);
      EXPECT_EQ(free_bytes, 256u << 20);
      EXPECT_EQ(total_bytes, 256u << 20);
    });
  }
}

}  // namespace
}  // namespace torch_fl::test
