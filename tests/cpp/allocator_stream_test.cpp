// SPDX-License-Identifier: Apache-2.0
// Blocks and streams: who gets a freed block, and when.
#include <cstring>
#include <set>
#include <thread>

#include "allocator_fixture.h"

namespace torch_fl::test {
namespace {

using runtime::Allocate;
using runtime::Free;
using runtime::GetMemoryStats;
using runtime::Stream;

const Environment kQueues[] = {{{"FLAGOS_HOST_QUEUE", "eager"}}, {{"FLAGOS_HOST_QUEUE", "lazy"}}};

TEST(AllocatorStream, EachStreamHasItsOwnBlocks) {
  for (const size_t size : {kKiB, 3 * kMiB, 40 * kMiB}) {
    InChild({}, [size] {
      Stream* side = runtime::StreamFromPool(0, 0);
      void* mine = Allocate(0, size);
      Free(mine);
      void* theirs = nullptr;
      {
        const OnStream on(side);
        theirs = Allocate(0, size);
        EXPECT_NE(theirs, mine);
        Free(theirs);
      }
      EXPECT_EQ(Allocate(0, size), mine);
      std::thread([&] {
        const OnStream on(side);
        EXPECT_EQ(Allocate(0, size), theirs) << "a stream's blocks are for every thread that uses it";
      }).join();
      ExpectConsistent();
    });
  }
}

TEST(AllocatorStream, TheDefaultStreamIsTheSameBeforeAndAfterItIsMade) {
  InChild({}, [] {
    void* block = Allocate(0, 100);
    Free(block);
    runtime::DefaultStream(0);
    EXPECT_EQ(Allocate(0, 100), block);
  });
}

TEST(AllocatorStream, ARecordedUseDelaysReuse) {
  for (const Environment& queue : kQueues) {
    for (const size_t size : {kKiB, 3 * kMiB}) {
      InChild(queue, [size] {
        Stream* side = runtime::StreamFromPool(0, 0);
        void* block = Allocate(0, size);
        Gate gate(side);
        runtime::RecordStream(block, side);
        Free(block);
        EXPECT_FALSE(runtime::Owns(block, nullptr));
        auto stats = GetMemoryStats(0);
        EXPECT_EQ(Total(stats.allocation).current, 0);
        EXPECT_EQ(Total(stats.active).current, 1);
        EXPECT_EQ(Total(stats.active_bytes).current, static_cast<int64_t>(size));
        EXPECT_EQ(runtime::TakeMemorySnapshot().segments.at(0).blocks.at(0).state,
                  runtime::BlockState::kActivePendingFree);
        void* other = Allocate(0, size);
        EXPECT_NE(other, block);
        ExpectConsistent();
        Free(other);
        gate.Open();
        runtime::SynchronizeStream(side);
        std::set<void*> blocks{Allocate(0, size), Allocate(0, size)};
        EXPECT_EQ(blocks, (std::set<void*>{block, other})) << "once the stream is done the block is found";
        stats = GetMemoryStats(0);
        EXPECT_EQ(Total(stats.active).current, 2);
        EXPECT_EQ(Total(stats.active).peak, 2);
        EXPECT_EQ(Total(stats.allocation).peak, 2);
        ExpectConsistent();
      });
    }
  }
}

TEST(AllocatorStream, UsesUpToTheFreeCount) {
  InChild({}, [] {
    Stream* side = runtime::StreamFromPool(0, 0);
    void* block = Allocate(0, 100);
    runtime::RecordStream(block, side);  // nothing is queued yet
    Gate gate(side);
    Free(block);
    EXPECT_NE(Allocate(0, 100), block) << "what came between RecordStream and Free counts too";
  });
}

TEST(AllocatorStream, EveryRecordedStreamCounts) {
  InChild({{"FLAGOS_HOST_DEVICES", "2"}}, [] {
    Stream* first = runtime::StreamFromPool(0, 0);
    Stream* second = runtime::StreamFromPool(1, 0);  // another device may use the block too
    void* block = Allocate(0, 100);
    Gate first_gate(first);
    Gate second_gate(second);
    for (int i = 0; i < 3; ++i) {
      runtime::RecordStream(block, first);
      runtime::RecordStream(block, second);
    }
    Free(block);
    first_gate.Open();
    runtime::SynchronizeStream(first);
    void* early = Allocate(0, 100);
    EXPECT_NE(early, block);
    Free(early);
    second_gate.Open();
    runtime::SynchronizeStream(second);
    EXPECT_EQ(Total(GetMemoryStats(0).active).current, 1);
    const std::set<void*> blocks{Allocate(0, 100), Allocate(0, 100)};
    EXPECT_EQ(blocks.count(block), 1u);
    EXPECT_EQ(Total(GetMemoryStats(0).active).current, 2);
  });
}

TEST(AllocatorStream, MentionsThatMeanNothing) {
  InChild({}, [] {
    Stream* side = runtime::StreamFromPool(0, 0);
    Stream* own = runtime::CurrentStream(0);
    char* block = static_cast<char*>(Allocate(0, 5000));
    Gate own_gate(own);
    runtime::RecordStream(block, own);  // the stream of the allocation needs no mention
    Gate side_gate(side);
    int on_stack = 0;
    runtime::RecordStream(block + 16, side);  // not what Allocate gave
    runtime::RecordStream(&on_stack, side);
    runtime::RecordStream(nullptr, side);
    Free(block);
    EXPECT_EQ(Allocate(0, 5000), block);
    // A use is forgotten with the block it was for.
    runtime::RecordStream(block, side);
    Free(block);
    side_gate.Open();
    own_gate.Open();
    runtime::SynchronizeDevice(0);
    runtime::EmptyCache();
    void* again = Allocate(0, 5000);
    Gate later(side);
    Free(again);
    EXPECT_EQ(Allocate(0, 5000), again);
  });
}

TEST(AllocatorStream, AFullDeviceWaitsForPendingBlocks) {
  for (const size_t again : {size_t{40}, size_t{30}, size_t{60}}) {
    InChild({{"FLAGOS_HOST_MEMORY", "64M"}}, [again] {
      Stream* side = runtime::StreamFromPool(0, 0);
      void* block = Allocate(0, 40 * kMiB);
      Gate gate(side);
      runtime::RecordStream(block, side);
      Free(block);
      std::thread opener([&] {
        usleep(20000);
        gate.Open();
      });
      void* next = Allocate(0, again * kMiB);
      EXPECT_TRUE(runtime::QueryStream(side));
      opener.join();
      const auto stats = GetMemoryStats(0);
      EXPECT_GE(stats.num_sync_all_streams, 1);
      EXPECT_EQ(stats.num_alloc_retries, 1);
      EXPECT_EQ(stats.num_ooms, 0);
      EXPECT_EQ(Total(stats.active).current, 1);
      Free(next);
      ExpectConsistent();
    });
  }
}

TEST(AllocatorStream, EmptyCacheWaitsForPendingBlocks) {
  InChild({}, [] {
    Stream* side = runtime::StreamFromPool(0, 0);
    void* block = Allocate(0, 40 * kMiB);
    Gate gate(side);
    runtime::RecordStream(block, side);
    Free(block);
    std::thread opener([&] {
      usleep(20000);
      gate.Open();
    });
    runtime::EmptyCache();
    EXPECT_EQ(Reserved(), 0);
    opener.join();
  });
}

TEST(AllocatorStream, FreedByAnotherThreadOnAnotherStream) {
  InChild({}, [] {
    void* block = Allocate(0, 100);
    std::thread([&] {
      const OnStream on(runtime::StreamFromPool(0, 0));
      Free(block);
      EXPECT_NE(Allocate(0, 100), block);
    }).join();
    EXPECT_EQ(Allocate(0, 100), block) << "it went back to the stream it was allocated on";
  });
}

TEST(AllocatorStream, FreedByAStreamCallback) {
  InChild({}, [] {
    void* block = Allocate(0, 100);
    void* large = Allocate(0, 40 * kMiB);
    void* blocks[] = {block, large};
    Stream* side = runtime::StreamFromPool(0, 0);
    runtime::StreamHostFunc(
        side,
        [](void* data) {
          Free(static_cast<void**>(data)[0]);
          Free(static_cast<void**>(data)[1]);
        },
        blocks);
    runtime::EmptyCache();
    runtime::SynchronizeStream(side);
    EXPECT_EQ(Total(GetMemoryStats(0).active).current, 0);
  });
}

TEST(AllocatorStream, AnEventThatCannotBeRecordedMeansWaiting) {
  InChild({{"FLAGOS_DRIVER_PLUGIN", kFaultyDriver}}, [] {
    Stream* side = runtime::StreamFromPool(0, 0);
    void* block = Allocate(0, 100);
    Gate gate(side);
    runtime::RecordStream(block, side);
    std::thread opener([&] {
      usleep(20000);
      gate.Open();
    });
    Fault("event_record") = 1;
    Free(block);
    EXPECT_TRUE(runtime::QueryStream(side));
    EXPECT_EQ(Total(GetMemoryStats(0).active).current, 0);
    EXPECT_EQ(Allocate(0, 100), block);
    opener.join();
  });
}

TEST(AllocatorStream, ABlockOfALostStreamIsNeverUsedAgain) {
  InChild({{"FLAGOS_DRIVER_PLUGIN", kFaultyDriver}}, [] {
    Stream* side = runtime::StreamFromPool(0, 0);
    void* block = Allocate(0, 100);
    Gate gate(side);
    runtime::RecordStream(block, side);
    Fault("event_record") = 1;
    Fault("stream_sync") = 1;
    Free(block);
    gate.Open();
    runtime::SynchronizeDevice(0);
    EXPECT_EQ(Total(GetMemoryStats(0).active).current, 1) << "leaked, and visible";
    for (int i = 0; i < 100; ++i) ASSERT_NE(Allocate(0, 100), block);
    ExpectConsistent();
  });
}

TEST(AllocatorStream, PoisonComesAfterTheLastUse) {
  InChild({{"FLAGOS_HOST_POISON", "1"}}, [] {
    Stream* side = runtime::StreamFromPool(0, 0);
    void* block = Allocate(0, 100);
    std::memset(View(block), 5, 100);
    {
      Gate gate(side);
      runtime::RecordStream(block, side);
      Free(block);
      EXPECT_EQ(View(block)[0], 5) << "still used";
    }
    runtime::SynchronizeStream(side);
    void* other = Allocate(0, 3 * kMiB);
    EXPECT_EQ(View(block)[0], 0xFD);
    EXPECT_EQ(Total(GetMemoryStats(0).active).current, 1);
    Free(other);
  });
}

TEST(AllocatorStream, ExitWithPendingBlocks) {
  for (const Environment& queue : kQueues) {
    InChild(queue, [] {
      Stream* side = runtime::StreamFromPool(0, 0);
      static void* late = Allocate(0, 100);
      static void* pending = Allocate(0, 100);
      static Gate* gate = new Gate(side);  // never opened
      (void)gate;
      runtime::RecordStream(pending, side);
      Free(pending);
      runtime::RecordStream(late, side);
      std::atexit([] { Free(late); });
    });
  }
}

}  // namespace
}  // namespace torch_fl::test
