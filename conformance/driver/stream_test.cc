// SPDX-License-Identifier: Apache-2.0
// Streams: handles, order, priorities, foreign streams, host functions.
#include <algorithm>
#include <atomic>
#include <thread>

#include "suite.h"

namespace torch_fl::suite {
namespace {

TEST(Streams, CreateAndDestroy) {
  NEED_DEVICES(1);
  for (int device = 0; device < DeviceCount(); ++device) {
    flagos_stream_t stream = nullptr;
    ASSERT_OK(D().stream_create(device, FLAGOS_STREAM_DEFAULT, 0, &stream));
    EXPECT_NE(stream, nullptr);
    EXPECT_OK(D().stream_query(stream));
    EXPECT_OK(D().stream_sync(stream));
    EXPECT_OK(D().stream_destroy(stream));
  }
}

TEST(Streams, HandlesDiffer) {
  NEED_DEVICES(1);
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 64; ++i) {
    streams.push_back(std::make_unique<Stream>(0));
    for (int j = 0; j < i; ++j) ASSERT_NE(streams[i]->get(), streams[j]->get());
  }
}

TEST(Streams, SixtyFourWorkAtOnce) {
  NEED_DEVICES(1);
  constexpr size_t kSize = 20000;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Block>> blocks;
  for (int i = 0; i < 64; ++i) {
    const int device = i % DeviceCount();
    streams.push_back(std::make_unique<Stream>(device));
    blocks.push_back(std::make_unique<Block>(device, kSize));
    const Bytes data = Pattern(kSize, i);
    CopyIn(*blocks[i], data.data(), kSize, streams[i]->get());
  }
  for (const auto& stream : streams) stream->Sync();
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(Same(Pattern(kSize, i), blocks[i]->Read())) << i;
}

TEST(Streams, UnknownFlagsAreRefused) {
  NEED_DEVICES(1);
  flagos_stream_t stream = nullptr;
  EXPECT_FAILS(stream_create, FLAGOS_INVALID_VALUE, 0, 0x40000000u, 0, &stream);
  EXPECT_EQ(stream, nullptr);
}

TEST(Streams, WorkRunsInOrder) {
  NEED_DEVICES(1);
  constexpr size_t kSize = 8192;
  const Block a(0, kSize);
  const Block b(0, kSize);
  const Stream stream(0);
  Bytes model_a(kSize, 0);
  Bytes model_b(kSize, 0);
  a.Write(model_a);
  b.Write(model_b);
  for (int i = 0; i < 200; ++i) {
    const size_t begin = (i * 37) % kSize;
    const size_t size = std::min<size_t>(kSize - begin, 100 + i);
    if (i % 3 == 0) {
      CopyBlock(b, a, kSize, stream.get());
      model_b = model_a;
    } else if (i % 3 == 1) {
      ASSERT_OK(D().fill(a.at(begin), 0, static_cast<uint8_t>(i), size, stream.get()));
      std::fill_n(model_a.begin() + static_cast<ptrdiff_t>(begin), size, static_cast<uint8_t>(i));
    } else {
      const Bytes data = Pattern(size, i);
      CopyIn(a, data.data(), size, stream.get(), begin);
      std::copy(data.begin(), data.end(), model_a.begin() + static_cast<ptrdiff_t>(begin));
    }
  }
  stream.Sync();
  EXPECT_TRUE(Same(model_a, a.Read()));
  EXPECT_TRUE(Same(model_b, b.Read()));
}

TEST(Streams, QuerySaysPendingAndIdle) {
  NEED_GATES();
  const Stream stream(0);
  const Stream other(0);
  Gate gate(stream);
  EXPECT_STATUS(FLAGOS_NOT_READY, D().stream_query(stream.get()));
  EXPECT_STATUS(FLAGOS_NOT_READY, D().stream_query(stream.get()));
  EXPECT_OK(D().stream_query(other.get()));
  gate.Open();
  stream.Sync();
  EXPECT_OK(D().stream_query(stream.get()));
}

TEST(Streams, AHeldStreamDoesNotHoldOthers) {
  NEED_GATES();
  const Stream held(0);
  const Stream free(0);
  const Block block(0, 1000);
  const Pinned out(1000);
  const Gate gate(held);
  ASSERT_OK(D().fill(block.get(), 0, 5, 1000, free.get()));
  CopyOut(out.get(), block, 1000, free.get());
  ASSERT_OK(D().stream_sync(free.get()));  // a hang is seen by the watchdog
  EXPECT_TRUE(Same(Bytes(1000, 5), out.Read()));
  EXPECT_STATUS(FLAGOS_NOT_READY, D().stream_query(held.get()));
}

TEST(Streams, DestroyLetsPendingWorkRun) {
  NEED_GATES();
  const Block block(0, 1000);
  block.Write(Bytes(1000, 1));
  Stream stream(0);
  Gate gate(stream);
  ASSERT_OK(D().fill(block.get(), 0, 2, 1000, stream.get()));
  std::thread opener([&] { gate.Open(); });  // a driver may wait in stream_destroy
  EXPECT_OK(D().stream_destroy(stream.Release()));
  opener.join();
  ASSERT_OK(D().device_sync(0));
  EXPECT_TRUE(Same(Bytes(1000, 2), block.Read()));
}

TEST(Streams, ManyAreMadeAndDestroyed) {
  NEED_DEVICES(1);
  const Block block(0, 64);
  for (int i = 0; i < 300; ++i) {
    const Stream stream(0);
    ASSERT_OK(D().fill(block.get(), 0, static_cast<uint8_t>(i), 64, stream.get()));
    stream.Sync();
  }
  EXPECT_TRUE(Same(Bytes(64, 299 & 0xFF), block.Read()));
}

TEST(Streams, SyncFromSeveralThreads) {
  NEED_GATES();
  const Stream stream(0);
  Gate gate(stream);
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      EXPECT_OK(D().stream_sync(stream.get()));
      ++done;
    });
  }
  EXPECT_EQ(done.load(), 0) << "the stream is held";
  gate.Open();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done.load(), 4);
}

TEST(Streams, AnotherThreadMayUseAStream) {
  NEED_DEVICES(1);
  const Block block(0, 100);
  const Stream stream(0);
  std::thread([&] { EXPECT_OK(D().fill(block.get(), 0, 8, 100, stream.get())); }).join();
  stream.Sync();
  EXPECT_TRUE(Same(Bytes(100, 8), block.Read()));
}

// ---- Priorities

TEST(Priorities, Range) {
  NEED_DEVICES(1);
  NEED_ENTRY(stream_priority_range);
  int32_t least = 0;
  int32_t greatest = 0;
  ASSERT_OK(D().stream_priority_range(0, &least, &greatest));
  EXPECT_GE(least, greatest) << "the lowest number is the highest priority";
  if (!Has(FLAGOS_CAP_STREAM_PRIORITY)) {
    EXPECT_EQ(least, 0);
    EXPECT_EQ(greatest, 0);
  }
}

TEST(Priorities, EveryOneOfTheRangeWorks) {
  NEED_DEVICES(1);
  NEED_ENTRY(stream_priority_range);
  NEED_CAPABILITY(STREAM_PRIORITY);
  int32_t least = 0;
  int32_t greatest = 0;
  ASSERT_OK(D().stream_priority_range(0, &least, &greatest));
  const Block block(0, 64);
  for (int32_t priority = greatest; priority <= least; ++priority) {
    const Stream stream(0, priority);
    ASSERT_OK(D().fill(block.get(), 0, static_cast<uint8_t>(priority), 64, stream.get()));
    stream.Sync();
    EXPECT_TRUE(Same(Bytes(64, static_cast<uint8_t>(priority)), block.Read()));
  }
}

// ---- Native and foreign streams

TEST(NativeStreams, AreNotNullAndConstant) {
  NEED_DEVICES(1);
  NEED_ENTRY(stream_native);
  const Stream stream(0);
  void* native = D().stream_native(stream.get());
  EXPECT_NE(native, nullptr);
  EXPECT_EQ(native, D().stream_native(stream.get()));
}

TEST(NativeStreams, AWrapperIsTheSameQueue) {
  NEED_DEVICES(1);
  NEED_ENTRY(stream_wrap);
  const Stream stream(0);
  void* native = D().stream_native != nullptr ? D().stream_native(stream.get()) : stream.get();
  flagos_stream_t wrapper = nullptr;
  ASSERT_OK(D().stream_wrap(0, native, &wrapper));
  EXPECT_NE(wrapper, nullptr);
  const Block block(0, 1000);
  for (int i = 0; i < 50; ++i) {
    ASSERT_OK(D().fill(block.get(), 0, 1, 1000, stream.get()));
    ASSERT_OK(D().fill(block.get(), 0, 2, 1000, wrapper));
  }
  ASSERT_OK(D().stream_sync(stream.get()));
  EXPECT_TRUE(Same(Bytes(1000, 2), block.Read()));
  EXPECT_OK(D().stream_query(wrapper));
  EXPECT_OK(D().stream_destroy(wrapper));
  ASSERT_OK(D().fill(block.get(), 0, 3, 1000, stream.get())) << "destroy frees the wrapper only";
  stream.Sync();
  EXPECT_TRUE(Same(Bytes(1000, 3), block.Read()));
}

// ---- Host functions

struct Order {
  std::mutex mutex;
  std::vector<int> seen;
};

struct Step {
  Order* order;
  int number;
};

void Note(void* data) {
  const auto* step = static_cast<Step*>(data);
  const std::lock_guard lock(step->order->mutex);
  step->order->seen.push_back(step->number);
}

TEST(HostFunctions, RunInOrder) {
  NEED_DEVICES(1);
  NEED_ENTRY(stream_host_func);
  Order order;
  std::vector<Step> steps;
  for (int i = 0; i < 100; ++i) steps.push_back({&order, i});
  const Stream stream(0);
  for (Step& step : steps) ASSERT_OK(D().stream_host_func(stream.get(), Note, &step));
  stream.Sync();
  ASSERT_EQ(order.seen.size(), steps.size());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order.seen[i], i);
}

TEST(HostFunctions, RunOffTheCallersThread) {
  NEED_DEVICES(1);
  NEED_ENTRY(stream_host_func);
  NEED_CAPABILITY(ASYNC);
  std::thread::id runner;
  const Stream stream(0);
  const auto note = [](void* data) { *static_cast<std::thread::id*>(data) = std::this_thread::get_id(); };
  ASSERT_OK(D().stream_host_func(stream.get(), note, &runner));
  stream.Sync();
  EXPECT_NE(runner, std::thread::id());
  EXPECT_NE(runner, std::this_thread::get_id());
}

TEST(HostFunctions, SeeWhatCopiesBeforeThemWrote) {
  NEED_DEVICES(1);
  NEED_ENTRY(stream_host_func);
  NEED_ENTRY(host_alloc);
  constexpr size_t kSize = 100000;
  const Block block(0, kSize);
  block.Write(Pattern(kSize, 1));
  const Pinned out(kSize);
  struct Look {
    const Pinned* out;
    Bytes seen;
  } look{&out, {}};
  const Stream stream(0);
  CopyOut(out.get(), block, kSize, stream.get());
  ASSERT_OK(D().stream_host_func(
      stream.get(),
      [](void* data) {
        auto* l = static_cast<Look*>(data);
        l->seen = l->out->Read();
      },
      &look));
  stream.Sync();
  EXPECT_TRUE(Same(Pattern(kSize, 1), look.seen));
}

TEST(HostFunctions, CopiesAfterThemSeeWhatTheyWrote) {
  NEED_DEVICES(1);
  NEED_ENTRY(stream_host_func);
  NEED_ENTRY(host_alloc);
  constexpr size_t kSize = 5000;
  const Block block(0, kSize);
  const Pinned in(Bytes(kSize, 0));
  const Stream stream(0);
  const auto write = [](void* data) {
    const auto* pinned = static_cast<const Pinned*>(data);
    std::fill_n(pinned->get(), pinned->size(), uint8_t{77});
  };
  ASSERT_OK(D().stream_host_func(stream.get(), write, const_cast<Pinned*>(&in)));
  CopyIn(block, in.get(), kSize, stream.get());
  stream.Sync();
  EXPECT_TRUE(Same(Bytes(kSize, 77), block.Read()));
}

TEST(HostFunctions, HoldLaterWorkOfTheStream) {
  NEED_GATES();
  Order order;
  Step step{&order, 1};
  const Stream stream(0);
  Gate gate(stream);
  ASSERT_OK(D().stream_host_func(stream.get(), Note, &step));
  {
    const std::lock_guard lock(order.mutex);
    EXPECT_TRUE(order.seen.empty());
  }
  gate.Open();
  stream.Sync();
  EXPECT_EQ(order.seen, std::vector<int>{1});
}

TEST(HostFunctions, NullIsRefused) {
  NEED_DEVICES(1);
  NEED_ENTRY(stream_host_func);
  const Stream stream(0);
  EXPECT_FAILS(stream_host_func, FLAGOS_INVALID_VALUE, stream.get(), nullptr, nullptr);
}

}  // namespace
}  // namespace torch_fl::suite
