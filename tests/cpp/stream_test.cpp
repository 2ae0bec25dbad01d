// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <set>
#include <thread>

#include "gate.h"
#include "host_driver.h"

namespace torch_fl::test {
namespace {

using runtime::Stream;

TEST(Copy, RoundTrip) {
  for (const char* protect : {"0", "1"}) {
    InQueueModes({{"FLAGOS_HOST_PROTECT", protect}}, [] {
      void* block = runtime::Allocate(0, 1000);
      std::vector<unsigned char> data(1000, 3);
      std::vector<unsigned char> back(1000);
      runtime::Copy(block, 0, data.data(), FLAGOS_HOST, 1000, false);
      EXPECT_EQ(View(block)[999], 3);
      runtime::Fill(static_cast<char*>(block) + 10, 0, 9, 5);
      runtime::Copy(back.data(), FLAGOS_HOST, block, 0, 1000, false);
      EXPECT_EQ(back[9], 3);
      EXPECT_EQ(back[10], 9);
      EXPECT_EQ(back[15], 3);
      runtime::Copy(block, 0, nullptr, FLAGOS_HOST, 0, false);
      const auto counters = runtime::GetRuntimeCounters();
      EXPECT_EQ(counters.copies_h2d, 1u);
      EXPECT_EQ(counters.bytes_d2h, 1000u);
      EXPECT_EQ(counters.fills, 1u);
      runtime::ResetRuntimeCounters();
      EXPECT_EQ(runtime::GetRuntimeCounters().copies_h2d, 0u);
    });
  }
}

TEST(Copy, RefusesWrongPointers) {
  for (const char* protect : {"0", "1"}) {
    InQueueModes({{"FLAGOS_HOST_PROTECT", protect}}, [&] {
      char* block = static_cast<char*>(runtime::Allocate(0, 2u << 20));
      std::vector<char> host(22u << 20);  // more than the segment of the block has
      const auto refuse = [](auto&&... arguments) {
        return ErrorOf([&] { runtime::Copy(arguments..., false); }, FLAGOS_INVALID_VALUE);
      };
      EXPECT_NE(refuse(host.data(), 0, block, 0, size_t{8}).find("not inside one block of device 0"),
                std::string::npos);
      EXPECT_EQ(
          refuse(block, 0, host.data(), FLAGOS_HOST, size_t{21} << 20).rfind("flagos: copy on device 0 failed", 0), 0u);
      EXPECT_EQ(refuse(host.data(), FLAGOS_HOST, host.data() + 64, FLAGOS_HOST, size_t{8}),
                "copy: neither side is a device");
      EXPECT_NE(refuse(block, 0, block + 4, 0, size_t{8}).find("overlap"), std::string::npos);
      EXPECT_NE(refuse(block, 0, static_cast<char*>(nullptr), FLAGOS_HOST, size_t{8}).find("NULL"), std::string::npos);
      // The host view is host memory; a protected device address is not.
      runtime::Copy(block, 0, View(block) + 64, FLAGOS_HOST, 8, false);
      if (std::strcmp(protect, "1") == 0) {
        EXPECT_NE(refuse(block, 0, block + 64, FLAGOS_HOST, size_t{8}).find("belongs to device 0"), std::string::npos);
        EXPECT_NE(refuse(View(block), 0, host.data(), FLAGOS_HOST, size_t{8}).find("not inside"), std::string::npos);
      }
    });
  }
}

TEST(Stream, RunsInOrderBehindAGate) {
  InChild({}, [] {
    unsigned char* block = static_cast<unsigned char*>(runtime::Allocate(0, 64));
    std::memset(View(block), 0, 64);
    Stream* stream = runtime::CurrentStream(0);
    EXPECT_TRUE(runtime::QueryStream(stream));
    Gate gate(stream);
    runtime::Fill(block, 0, 1, 64);
    unsigned char source[8] = {5, 5, 5, 5, 5, 5, 5, 5};
    runtime::Copy(block, 0, source, FLAGOS_HOST, 8, true);
    std::memset(source, 6, 8);  // a pageable source was read already
    EXPECT_FALSE(runtime::QueryStream(stream));
    EXPECT_EQ(View(block)[63], 0) << "nothing may run before the gate";
    gate.Open();
    runtime::KernelBegin(0);
    EXPECT_TRUE(runtime::QueryStream(stream));
    EXPECT_EQ(View(block)[0], 5);
    EXPECT_EQ(View(block)[8], 1);
    const uint64_t syncs = runtime::GetRuntimeCounters().stream_syncs;
    runtime::KernelBegin(0);
    runtime::SynchronizeStream(stream);
    EXPECT_EQ(runtime::GetRuntimeCounters().stream_syncs, syncs) << "an idle stream costs no call";
  });
}

TEST(Stream, SynchronousCopyWaitsForItsStream) {
  InChild({}, [] {
    void* block = runtime::Allocate(0, 64);
    Gate gate(runtime::CurrentStream(0));
    runtime::Fill(block, 0, 4, 64);
    std::thread opener([&] {
      usleep(20000);
      gate.Open();
    });
    unsigned char back[64] = {};
    runtime::Copy(back, FLAGOS_HOST, block, 0, 64, false);
    EXPECT_EQ(back[63], 4);
    opener.join();
  });
}

TEST(Stream, DeviceSynchronizeCoversAllStreams) {
  InQueueModes({}, [] {
    void* block = runtime::Allocate(0, 64);
    Stream* side = runtime::StreamFromPool(0, 0);
    Stream* previous = runtime::ExchangeCurrentStream(side);
    runtime::Fill(block, 0, 8, 64);
    runtime::ExchangeCurrentStream(previous);
    runtime::SynchronizeDevice(0);
    EXPECT_EQ(View(block)[0], 8);
    EXPECT_TRUE(runtime::QueryStream(side));
  });
}

TEST(Stream, EventsOrderTwoStreams) {
  InChild({}, [] {
    unsigned char* block = static_cast<unsigned char*>(runtime::Allocate(0, 64));
    Stream* first = runtime::StreamFromPool(0, 0);
    Stream* second = runtime::StreamFromPool(0, 0);
    runtime::Event* event = runtime::CreateEvent(0, false, false);
    EXPECT_TRUE(runtime::QueryEvent(event)) << "never recorded is complete";
    runtime::SynchronizeEvent(event);
    runtime::StreamWaitEvent(second, event);
    EXPECT_EQ(runtime::EventDevice(event), 0);

    Gate gate(first);
    runtime::ExchangeCurrentStream(first);
    runtime::Fill(block, 0, 1, 64);
    runtime::RecordEvent(event, first);
    EXPECT_FALSE(runtime::QueryEvent(event));
    runtime::ExchangeCurrentStream(second);
    runtime::StreamWaitEvent(second, event);
    runtime::Fill(block, 0, 2, 64);
    EXPECT_FALSE(runtime::QueryStream(second));
    gate.Open();
    runtime::SynchronizeStream(second);
    EXPECT_TRUE(runtime::QueryEvent(event));
    EXPECT_EQ(View(block)[0], 2);
    runtime::DestroyEvent(event);
  });
}

TEST(Stream, IdsAndThreads) {
  InQueueModes({{"FLAGOS_HOST_DEVICES", "2"}}, [] {
    Stream* standard = runtime::DefaultStream(0);
    EXPECT_EQ(runtime::StreamId(standard), 0);
    EXPECT_EQ(runtime::CurrentStream(0), standard);
    EXPECT_EQ(runtime::StreamFromId(0, 0), standard);
    EXPECT_NE(runtime::DefaultStream(1), standard);
    std::set<Stream*> streams;
    std::set<int64_t> ids;
    for (int i = 0; i < 64; ++i) {
      Stream* stream = runtime::StreamFromPool(0, i % 2 == 0 ? -5 : 5);  // the nearest of -1 and 0
      EXPECT_EQ(runtime::StreamPriority(stream), i % 2 == 0 ? -1 : 0);
      EXPECT_EQ(runtime::StreamDevice(stream), 0);
      EXPECT_EQ(runtime::StreamFromId(0, runtime::StreamId(stream)), stream);
      streams.insert(stream);
      ids.insert(runtime::StreamId(stream));
    }
    EXPECT_EQ(streams.size(), 64u);
    EXPECT_EQ(ids.size(), 64u);
    EXPECT_EQ(ids.count(0), 0u);
    EXPECT_EQ(streams.count(runtime::StreamFromPool(0, 0)), 1u) << "the 33rd of a priority is the first again";
    for (const int64_t id : {int64_t{-1}, int64_t{200}, int64_t{5000}}) {
      ErrorOf([&] { runtime::StreamFromId(0, id); }, FLAGOS_INVALID_HANDLE);
    }
    Stream* side = *streams.begin();
    EXPECT_EQ(runtime::ExchangeCurrentStream(side), standard);
    std::thread([&] {
      EXPECT_EQ(runtime::CurrentStream(0), standard) << "another thread has its own";
      runtime::SetDevice(1);
    }).join();
    EXPECT_EQ(runtime::CurrentDevice(), 0);
    EXPECT_EQ(runtime::CurrentStream(0), side);
    EXPECT_EQ(runtime::CurrentStream(1), runtime::DefaultStream(1));
    EXPECT_NE(runtime::StreamNative(side), nullptr);
  });
}

TEST(Stream, AFreedBlockBelongsToItsStream) {
  InQueueModes({}, [] {
    Stream* side = runtime::StreamFromPool(0, 0);
    Stream* standard = runtime::ExchangeCurrentStream(side);
    void* block = runtime::Allocate(0, 256);
    Gate gate(side);
    runtime::Fill(block, 0, 1, 256);
    runtime::Free(block);
    EXPECT_EQ(runtime::Allocate(0, 256), block) << "the same stream may have it at once";
    EXPECT_FALSE(runtime::QueryStream(side));
    runtime::Free(block);
    runtime::ExchangeCurrentStream(standard);
    EXPECT_NE(runtime::Allocate(0, 256), block) << "another stream never gets it";
    gate.Open();
    runtime::SynchronizeDevice(0);
    EXPECT_NE(runtime::Allocate(0, 256), block);
    runtime::ExchangeCurrentStream(side);
    EXPECT_EQ(runtime::Allocate(0, 256), block);
  });
}

TEST(Event, Timing) {
  InChild({}, [] {
    Stream* stream = runtime::CurrentStream(0);
    runtime::Event* start = runtime::CreateEvent(0, true, false);
    runtime::Event* end = runtime::CreateEvent(0, true, true);
    runtime::Event* plain = runtime::CreateEvent(0, false, false);
    ErrorOf([&] { runtime::ElapsedMs(start, end); }, FLAGOS_INVALID_HANDLE);
    runtime::RecordEvent(start, stream);
    ErrorOf([&] { runtime::ElapsedMs(start, plain); }, FLAGOS_INVALID_HANDLE);
    {
      Gate gate(stream);
      runtime::RecordEvent(end, stream);
      EXPECT_EQ(ErrorOf([&] { runtime::ElapsedMs(start, end); }, FLAGOS_NOT_READY),
                "event_elapsed_time: an event is still pending; call end_event.synchronize() first");
      usleep(3000);
    }
    runtime::SynchronizeEvent(end);
    EXPECT_GE(runtime::ElapsedMs(start, end), 2.5);
    EXPECT_LE(runtime::ElapsedMs(end, start), -2.5);
    for (runtime::Event* event : {start, end, plain}) runtime::DestroyEvent(event);
  });
}

TEST(Event, DestroyedWhilePending) {
  InChild({}, [] {
    Stream* stream = runtime::CurrentStream(0);
    Stream* other = runtime::StreamFromPool(0, 0);
    runtime::Event* event = runtime::CreateEvent(0, false, false);
    Gate gate(stream);
    runtime::RecordEvent(event, stream);
    runtime::StreamWaitEvent(other, event);
    runtime::DestroyEvent(event);
    EXPECT_FALSE(runtime::QueryStream(other));
    gate.Open();
    runtime::SynchronizeStream(other);
    runtime::SynchronizeStream(stream);
  });
}

TEST(Stream, ExitWithWorkPending) {
  InQueueModes({}, [] {
    static Gate* gate = new Gate(runtime::CurrentStream(0));  // never opened
    (void)gate;
    runtime::Fill(runtime::Allocate(0, 64), 0, 1, 64);
  });
}

}  // namespace
}  // namespace torch_fl::test
