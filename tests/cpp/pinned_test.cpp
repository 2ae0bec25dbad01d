// SPDX-License-Identifier: Apache-2.0
#include "runtime/pinned.h"

#include <cstring>
#include <set>
#include <thread>

#include "allocator_fixture.h"

namespace torch_fl::test {
namespace {

using runtime::GetHostMemoryStats;
using runtime::HostAllocate;
using runtime::HostFree;
using runtime::Stream;

TEST(Pinned, RoundsReusesAndCounts) {
  InChild({}, [] {
    EXPECT_TRUE(runtime::HostMemoryAvailable());
    EXPECT_EQ(HostAllocate(0), nullptr);
    HostFree(nullptr);
    void* block = HostAllocate(600);
    std::memset(block, 1, 1024);
    auto stats = GetHostMemoryStats();
    EXPECT_EQ(stats.allocated_bytes.current, 1024);
    EXPECT_EQ(stats.num_host_alloc, 1);
    HostFree(block);
    EXPECT_EQ(HostAllocate(1000), block) << "the same power of two";
    void* other = HostAllocate(1000);
    EXPECT_NE(other, block);
    EXPECT_NE(HostAllocate(1), nullptr);
    stats = GetHostMemoryStats();
    EXPECT_EQ(stats.allocation.current, 3);
    EXPECT_EQ(stats.allocated_bytes.current, 2 * 1024 + 512);
    EXPECT_EQ(stats.reserved_bytes.current, 2 * 1024 + 512);
    EXPECT_EQ(stats.segment.current, 3);
    HostFree(other);
    HostFree(block);
    HostFree(block);                         // a mistake: ignored
    HostFree(static_cast<char*>(other) + 8);  // so is this
    stats = GetHostMemoryStats();
    EXPECT_EQ(stats.allocation.current, 1);
    EXPECT_EQ(stats.allocation.freed, 3);
    EXPECT_EQ(stats.allocated_bytes.peak, 2 * 1024 + 512);
    runtime::HostEmptyCache();
    stats = GetHostMemoryStats();
    EXPECT_EQ(stats.segment.current, 1);
    EXPECT_EQ(stats.num_host_free, 2);
    EXPECT_EQ(stats.reserved_bytes.current, 512);
    runtime::ResetHostPeakStats();
    runtime::ResetHostAccumulatedStats();
    stats = GetHostMemoryStats();
    EXPECT_EQ(stats.allocated_bytes.peak, 512);
    EXPECT_EQ(stats.allocation.allocated, 0);
    EXPECT_EQ(stats.num_host_alloc, 0);
  });
}

TEST(Pinned, AUsedBlockIsNotHandedOut) {
  for (const char* queue : {"eager", "lazy"}) {
    InChild({{"FLAGOS_HOST_QUEUE", queue}}, [] {
      Stream* side = runtime::StreamFromPool(0, 0);
      char* block = static_cast<char*>(HostAllocate(1000));
      Gate gate(side);
      EXPECT_TRUE(runtime::HostRecordStream(block + 999, side)) << "interior addresses too";
      EXPECT_FALSE(runtime::HostRecordStream(block + 1024, side));
      EXPECT_FALSE(runtime::HostRecordStream(&gate, side));
      HostFree(block);
      EXPECT_EQ(GetHostMemoryStats().allocation.current, 0);
      void* other = HostAllocate(1000);
      EXPECT_NE(other, block);
      EXPECT_FALSE(runtime::HostRecordStream(block, side)) << "freed";
      gate.Open();
      runtime::SynchronizeStream(side);
      EXPECT_EQ(HostAllocate(1000), block);
    });
  }
}

TEST(Pinned, EveryStreamCounts) {
  InChild({{"FLAGOS_HOST_DEVICES", "2"}}, [] {
    Stream* first = runtime::StreamFromPool(0, 0);
    Stream* second = runtime::StreamFromPool(1, 0);
    void* block = HostAllocate(1000);
    Gate first_gate(first);
    Gate second_gate(second);
    for (Stream* stream : {first, second, first}) runtime::HostRecordStream(block, stream);
    HostFree(block);
    first_gate.Open();
    runtime::SynchronizeStream(first);
    EXPECT_NE(HostAllocate(1000), block);
    second_gate.Open();
    runtime::SynchronizeStream(second);
    EXPECT_EQ(HostAllocate(1000), block);
  });
}

TEST(Pinned, EmptyCacheWaits) {
  InChild({}, [] {
    Stream* side = runtime::StreamFromPool(0, 0);
    void* block = HostAllocate(1000);
    Gate gate(side);
    runtime::HostRecordStream(block, side);
    HostFree(block);
    std::thread opener([&] {
      usleep(20000);
      gate.Open();
    });
    runtime::HostEmptyCache();
    EXPECT_TRUE(runtime::QueryStream(side));
    EXPECT_EQ(GetHostMemoryStats().segment.current, 0);
    opener.join();
  });
}

TEST(Pinned, WhatCountsAsPinned) {
  InChild({}, [] {
    char* block = static_cast<char*>(HostAllocate(5000));
    EXPECT_TRUE(runtime::IsPinned(block));
    EXPECT_TRUE(runtime::IsPinned(block + 4999));
    EXPECT_FALSE(runtime::IsPinned(nullptr));
    std::vector<char> pageable(1 << 16);
    EXPECT_FALSE(runtime::IsPinned(pageable.data()));
    EXPECT_FALSE(runtime::IsPinned(runtime::Allocate(0, 100)));
    ASSERT_EQ(runtime::Driver().host_register(pageable.data(), pageable.size()), FLAGOS_OK);
    EXPECT_TRUE(runtime::IsPinned(pageable.data() + 100)) << "page-locked by somebody else";
    runtime::Driver().host_unregister(pageable.data());
  });
}

TEST(Pinned, ADriverWithoutIt) {
  InChild({{"FLAGOS_DRIVER_PLUGIN", TEST_FIXTURES "/libtorch_fl_driver_minimal.so"}}, [] {
    EXPECT_FALSE(runtime::HostMemoryAvailable());
    EXPECT_NE(ErrorOf([] { HostAllocate(100); }, FLAGOS_UNSUPPORTED).find("use ordinary memory"), std::string::npos);
    int on_stack = 0;
    EXPECT_FALSE(runtime::IsPinned(&on_stack));
  });
}

TEST(Pinned, RefusesWhatNobodyHas) {
  InChild({}, [] {
    const std::string text = ErrorOf([] { HostAllocate(~size_t{0}); }, FLAGOS_OUT_OF_MEMORY);
    EXPECT_EQ(text.rfind("pin_memory: no page-locked memory for", 0), 0u) << text;
    EXPECT_NE(HostAllocate(100), nullptr);
  });
}

TEST(Pinned, AnEventThatCannotBeRecordedMeansWaiting) {
  InChild({{"FLAGOS_DRIVER_PLUGIN", kFaultyDriver}}, [] {
    Stream* side = runtime::StreamFromPool(0, 0);
    void* block = HostAllocate(1000);
    void* lost = HostAllocate(1000);
    Gate gate(side);
    runtime::HostRecordStream(block, side);
    runtime::HostRecordStream(lost, side);
    std::thread opener([&] {
      usleep(20000);
      gate.Open();
    });
    Fault("event_record") = 2;
    HostFree(block);
    EXPECT_TRUE(runtime::QueryStream(side));
    opener.join();
    Gate second(side);
    Fault("stream_sync") = 1;
    HostFree(lost);
    second.Open();
    runtime::SynchronizeStream(side);
    const std::set<void*> blocks{HostAllocate(1000), HostAllocate(1000)};
    EXPECT_EQ(blocks.count(block), 1u);
    EXPECT_EQ(blocks.count(lost), 0u) << "nobody knows when its stream is done";
  });
}

TEST(Pinned, Threads) {
  InChild({}, [] {
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 4; ++seed) {
      threads.emplace_back([seed] {
        Stream* own = runtime::StreamFromPool(0, 0);
        unsigned state = seed;
        for (int i = 0; i < 500; ++i) {
          state = state * 1664525 + 1013904223;
          const size_t size = 1 + (state >> 8) % 10000;
          auto* block = static_cast<unsigned char*>(HostAllocate(size));
          block[0] = block[size - 1] = static_cast<unsigned char>(seed);
          if (i % 3 == 0) {
            runtime::StreamHostFunc(own, [](void*) {}, nullptr);
            runtime::HostRecordStream(block, own);
          }
          ASSERT_EQ(block[size - 1], seed);
          HostFree(block);
          if (i % 100 == 0) runtime::HostEmptyCache();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    runtime::HostEmptyCache();
    const auto stats = GetHostMemoryStats();
    EXPECT_EQ(stats.allocation.current, 0);
    EXPECT_EQ(stats.reserved_bytes.current, 0);
    EXPECT_EQ(stats.num_host_alloc, stats.num_host_free);
  });
}

}  // namespace
}  // namespace torch_fl::test
