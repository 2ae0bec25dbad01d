// SPDX-License-Identifier: Apache-2.0
// Kernels that the host runs in place: kernel_begin and kernel_end give them a place in a stream.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "suite.h"

namespace torch_fl::suite {
namespace {

#define NEED_KERNELS() \
  NEED_DEVICES(1);     \
  NEED_CAPABILITY(KERNEL_ORDER)

uint8_t* View(const Block& block) {
  ptrdiff_t offset = 0;
  Check(D().host_view_offset(block.device(), &offset), "host_view_offset");
  return block.at(0) + offset;
}

// Runs `body` as a kernel of the stream that writes the first block and reads the second.
void RunKernel(const Stream& stream, const Block* writes, const Block* reads, const std::function<void()>& body) {
  Check(D().kernel_begin(stream.get()), "kernel_begin");
  body();
  std::vector<flagos_access_t> accesses;
  if (writes != nullptr) accesses.push_back({writes->get(), writes->size(), 1});
  if (reads != nullptr) accesses.push_back({reads->get(), reads->size(), 0});
  flagos_kernel_t kernel{};
  kernel.struct_size = sizeof kernel;
  kernel.name = "suite::kernel";
  kernel.accesses = accesses.data();
  kernel.access_count = accesses.size();
  Check(D().kernel_end(stream.get(), &kernel), "kernel_end");
}

TEST(Kernels, SeeCopiesBeforeThem) {
  NEED_KERNELS();
  constexpr size_t kSize = 100000;
  for (int device = 0; device < DeviceCount(); ++device) {
    const Block block(device, kSize);
    const Stream stream(device);
    const Pinned in(Pattern(kSize, 1));
    Bytes seen(kSize);
    CopyIn(block, in.get(), kSize, stream.get());
    RunKernel(stream, nullptr, &block, [&] { std::memcpy(seen.data(), View(block), kSize); });
    EXPECT_TRUE(Same(in.Read(), seen));
    stream.Sync();
  }
}

TEST(Kernels, AreSeenByCopiesAfterThem) {
  NEED_KERNELS();
  constexpr size_t kSize = 100000;
  const Block block(0, kSize);
  const Stream stream(0);
  const Pinned out(kSize);
  const Bytes data = Pattern(kSize, 2);
  RunKernel(stream, &block, nullptr, [&] { std::memcpy(View(block), data.data(), kSize); });
  CopyOut(out.get(), block, kSize, stream.get());
  stream.Sync();
  EXPECT_TRUE(Same(data, out.Read()));
}

TEST(Kernels, AlternateWithCopies) {
  NEED_KERNELS();
  constexpr size_t kSize = 4096;
  const Block a(0, kSize);
  const Block b(0, kSize);
  const Stream stream(0);
  a.Write(Bytes(kSize, 0));
  for (int round = 0; round < 50; ++round) {
    RunKernel(stream, &a, nullptr, [&] {
      uint8_t* view = View(a);
      for (size_t i = 0; i < kSize; ++i) view[i] = static_cast<uint8_t>(view[i] + 1);
    });
    CopyBlock(b, a, kSize, stream.get());
    ASSERT_OK(D().fill(b.get(), 0, static_cast<uint8_t>(round), 10, stream.get()));
    CopyBlock(a, b, kSize, stream.get());
  }
  stream.Sync();
  Bytes wanted(kSize, 50);
  std::fill_n(wanted.begin(), 10, uint8_t{49});
  EXPECT_TRUE(Same(wanted, a.Read()));
}

TEST(Kernels, BeginWaitsForTheStream) {
  NEED_KERNELS();
  NEED_GATES();
  const Stream stream(0);
  Gate gate(stream);
  std::atomic<bool> opened{false};
  std::thread opener([&] {
    opened = true;
    gate.Open();
  });
  RunKernel(stream, nullptr, nullptr, [&] { EXPECT_TRUE(opened.load()); });
  opener.join();
  stream.Sync();
}

TEST(Kernels, BeginWaitsForWhatTheStreamWaitsFor) {
  NEED_KERNELS();
  NEED_GATES();
  const Block block(0, 1000);
  const Stream first(0);
  const Stream second(0);
  const Event event(0);
  Gate gate(first);
  ASSERT_OK(D().fill(block.get(), 0, 4, 1000, first.get()));
  event.Record(first);
  second.Wait(event.get());
  std::thread opener([&] { gate.Open(); });
  Bytes seen(1000);
  RunKernel(second, nullptr, &block, [&] { std::memcpy(seen.data(), View(block), 1000); });
  opener.join();
  EXPECT_TRUE(Same(Bytes(1000, 4), seen));
  second.Sync();
}

TEST(Kernels, BeginDoesNotWaitForOtherStreams) {
  NEED_KERNELS();
  NEED_GATES();
  const Stream held(0);
  const Stream free(0);
  const Gate gate(held);
  RunKernel(free, nullptr, nullptr, [] {});  // a hang is seen by the watchdog
  free.Sync();
  EXPECT_STATUS(FLAGOS_NOT_READY, D().stream_query(held.get()));
}

TEST(Kernels, EventsAfterThemCoverThem) {
  NEED_KERNELS();
  constexpr size_t kSize = 5000;
  const Block block(0, kSize);
  const Block copy(0, kSize);
  const Stream first(0);
  const Stream second(0);
  const Event event(0);
  for (int round = 0; round < 20; ++round) {
    const Bytes data = Pattern(kSize, round);
    RunKernel(first, &block, nullptr, [&] { std::memcpy(View(block), data.data(), kSize); });
    event.Record(first);
    second.Wait(event.get());
    CopyBlock(copy, block, kSize, second.get());
    second.Sync();
    EXPECT_OK(D().event_query(event.get())) << "the second stream was behind it";
    ASSERT_TRUE(Same(data, copy.Read())) << round;
  }
}

TEST(Kernels, SyncsCoverThem) {
  NEED_KERNELS();
  const Stream stream(0);
  const Event event(0);
  for (int round = 0; round < 20; ++round) {
    RunKernel(stream, nullptr, nullptr, [] {});
    event.Record(stream);
    if (round % 3 == 0) {
      ASSERT_OK(D().event_sync(event.get()));
    } else if (round % 3 == 1) {
      ASSERT_OK(D().stream_sync(stream.get()));
    } else {
      ASSERT_OK(D().device_sync(0));
    }
    EXPECT_OK(D().event_query(event.get()));
    EXPECT_OK(D().stream_query(stream.get()));
  }
}

TEST(Kernels, FromManyThreads) {
  NEED_KERNELS();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([i] {
      const int device = i % DeviceCount();
      const Block block(device, 4096);
      const Stream stream(device);
      for (int round = 0; round < 50; ++round) {
        const auto value = static_cast<uint8_t>(i * 16 + round % 16);
        RunKernel(stream, &block, nullptr, [&] { std::memset(View(block), value, 4096); });
        stream.Sync();
        ASSERT_TRUE(Same(Bytes(4096, value), block.Read()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace torch_fl::suite
