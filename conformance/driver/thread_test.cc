// SPDX-License-Identifier: Apache-2.0
// Every entry from many threads at once.
#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <thread>

#include "suite.h"

namespace torch_fl::suite {
namespace {

constexpr int kThreads = 8;

void InThreads(const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&body, i] {
      try {
        body(i);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "thread " << i << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Threads, AllocateWriteReadFree) {
  NEED_DEVICES(1);
  InThreads([](int index) {
    std::mt19937 random(static_cast<uint32_t>(index));
    for (int round = 0; round < 100; ++round) {
      const size_t size = 1 + random() % 30000;
      const Block block(static_cast<int>(random() % DeviceCount()), size);
      const Bytes data = Pattern(size, random());
      block.Write(data);
      ASSERT_TRUE(Same(data, block.Read())) << "thread " << index << " round " << round;
    }
  });
}

TEST(Threads, StreamsOfTheirOwn) {
  NEED_DEVICES(1);
  InThreads([](int index) {
    constexpr size_t kSize = 20000;
    const int device = index % DeviceCount();
    const Pinned in(Pattern(kSize, index));
    const Pinned out(kSize);
    for (int round = 0; round < 40; ++round) {
      const Stream first(device);
      const Stream second(device);
      const Event event(device);
      const Block a(device, kSize);
      const Block b(device, kSize);
      CopyIn(a, in.get(), kSize, first.get());
      event.Record(first);
      second.Wait(event.get());
      CopyBlock(b, a, kSize, second.get());
      std::fill_n(out.get(), kSize, uint8_t{0});
      CopyOut(out.get(), b, kSize, second.get());
      second.Sync();
      ASSERT_TRUE(Same(in.Read(), out.Read())) << "thread " << index << " round " << round;
    }
  });
}

TEST(Threads, OneStreamShared) {
  NEED_DEVICES(1);
  const Stream stream(0);
  InThreads([&](int index) {
    const Block block(0, 5000);
    for (int round = 0; round < 100; ++round) {
      Check(D().fill(block.get(), 0, static_cast<uint8_t>(index * 16 + round % 16), 5000, stream.get()), "fill");
      if (round % 10 != 0) continue;
      stream.Sync();
      ASSERT_TRUE(Same(Bytes(5000, static_cast<uint8_t>(index * 16 + round % 16)), block.Read())) << index;
    }
    stream.Sync();
  });
}

TEST(Threads, HandOverThroughEvents) {
  NEED_DEVICES(1);
  constexpr size_t kSize = 10000;
  struct Slot {
    std::mutex mutex;
    std::condition_variable changed;
    std::unique_ptr<Block> block;
    std::unique_ptr<Event> event;
    Bytes data;
  };
  constexpr int kPairs = kThreads / 2;
  std::array<Slot, kPairs> slots;
  InThreads([&](int index) {
    Slot& slot = slots[index / 2];
    const int device = index / 2 % DeviceCount();
    const Stream stream(device);
    for (int round = 0; round < 40; ++round) {
      std::unique_lock lock(slot.mutex);
      if (index % 2 == 0) {
        slot.changed.wait(lock, [&] { return slot.block == nullptr; });
        slot.data = Pattern(kSize, index * 1000 + round);
        slot.block = std::make_unique<Block>(device, kSize);
        slot.event = std::make_unique<Event>(device);
        CopyIn(*slot.block, slot.data.data(), kSize, stream.get());
        slot.event->Record(stream);
      } else {
        slot.changed.wait(lock, [&] { return slot.block != nullptr; });
        const Pinned out(kSize);
        stream.Wait(slot.event->get());
        CopyOut(out.get(), *slot.block, kSize, stream.get());
        stream.Sync();
        EXPECT_TRUE(Same(slot.data, out.Read())) << "pair " << index / 2 << " round " << round;
        slot.block.reset();
        slot.event.reset();
      }
      slot.changed.notify_all();
    }
  });
}

TEST(Threads, SyncsQueriesAndErrorsBesideWork) {
  NEED_DEVICES(1);
  InThreads([](int index) {
    const int device = index % DeviceCount();
    const Stream stream(device);
    const Event event(device);
    const Block block(device, 4096);
    for (int round = 0; round < 60; ++round) {
      const auto value = static_cast<uint8_t>(round + index);
      Check(D().fill(block.get(), device, value, 4096, stream.get()), "fill");
      event.Record(stream);
      const flagos_status_t query = D().event_query(event.get());
      ASSERT_TRUE(query == FLAGOS_OK || query == FLAGOS_NOT_READY) << Describe(query);
      const int32_t bad = 1000 + index;
      ASSERT_STATUS(FLAGOS_INVALID_DEVICE, D().device_sync(bad));
      ASSERT_EQ(D().last_error()->device, bad);
      Check(round % 3 == 0 ? D().device_sync(device) : D().event_sync(event.get()), "sync");
      ASSERT_TRUE(Same(Bytes(4096, value), block.Read())) << index;
    }
  });
}

TEST(Threads, PinnedMemoryBesideCopies) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_alloc);
  InThreads([](int index) {
    const int device = index % DeviceCount();
    const Stream stream(device);
    for (int round = 0; round < 40; ++round) {
      const size_t size = 1000 + 137 * static_cast<size_t>(round);
      const Block block(device, size);
      const Pinned in(Pattern(size, round * 8 + index));
      const Pinned out(size);
      CopyIn(block, in.get(), size, stream.get());
      CopyOut(out.get(), block, size, stream.get());
      stream.Sync();
      ASSERT_TRUE(Same(in.Read(), out.Read())) << index;
    }
  });
}

TEST(Threads, FreeWhatAnotherThreadAllocated) {
  NEED_DEVICES(1);
  std::vector<void*> blocks(kThreads);
  std::vector<flagos_stream_t> streams(kThreads);
  InThreads([&](int index) {
    Check(D().memory_alloc(0, 4096, &blocks[index]), "memory_alloc");
    Check(D().stream_create(0, FLAGOS_STREAM_DEFAULT, 0, &streams[index]), "stream_create");
    Check(D().fill(blocks[index], 0, 1, 4096, streams[index]), "fill");
  });
  InThreads([&](int index) {
    const int other = (index + 1) % kThreads;
    EXPECT_OK(D().stream_destroy(streams[other]));
    EXPECT_OK(D().memory_free(0, blocks[other]));
  });
}

TEST(Threads, OneOfManyFreesWins) {
  NEED_DEVICES(1);
  for (int round = 0; round < 20; ++round) {
    Block block(0, 4096);
    void* pointer = block.Release();
    std::atomic<int> freed{0};
    InThreads([&](int) {
      const flagos_status_t status = D().memory_free(0, pointer);
      if (status == FLAGOS_OK) ++freed;
      EXPECT_TRUE(status == FLAGOS_OK || status == FLAGOS_INVALID_VALUE) << Describe(status);
    });
    EXPECT_EQ(freed.load(), 1);
  }
}

TEST(Threads, MayEndWithWorkPending) {
  NEED_GATES();
  const Block block(0, 1000);
  const Stream stream(0);
  Gate gate(stream);
  std::thread([&] { EXPECT_OK(D().fill(block.get(), 0, 6, 1000, stream.get())); }).join();
  gate.Open();
  stream.Sync();
  EXPECT_TRUE(Same(Bytes(1000, 6), block.Read()));
}

TEST(Threads, ManyShortOnes) {
  NEED_DEVICES(1);
  const Stream stream(0);
  for (int i = 0; i < 200; ++i) {
    std::thread([&] {
      const Block block(0, 64);
      EXPECT_OK(D().fill(block.get(), 0, 1, 64, stream.get()));
      EXPECT_STATUS(FLAGOS_INVALID_DEVICE, D().device_sync(-1));
      EXPECT_OK(D().stream_sync(stream.get()));
    }).join();
  }
}

}  // namespace
}  // namespace torch_fl::suite
