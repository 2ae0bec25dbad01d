// SPDX-License-Identifier: Apache-2.0
// Events: state, waits across streams and devices, elapsed time.
#include <thread>

#include "suite.h"

namespace torch_fl::suite {
namespace {

TEST(Events, NeverRecordedIsComplete) {
  NEED_DEVICES(1);
  for (uint32_t flags = 0; flags <= (FLAGOS_EVENT_TIMING | FLAGOS_EVENT_BLOCKING); ++flags) {
    const Event event(0, flags);
    const Stream stream(0);
    EXPECT_OK(D().event_query(event.get()));
    EXPECT_OK(D().event_sync(event.get()));
    EXPECT_OK(D().stream_wait(stream.get(), event.get()));
    EXPECT_OK(D().stream_sync(stream.get()));
  }
}

TEST(Events, UnknownFlagsAreRefused) {
  NEED_DEVICES(1);
  flagos_event_t event = nullptr;
  EXPECT_FAILS(event_create, FLAGOS_INVALID_VALUE, 0, 0x40000000u, &event);
  EXPECT_EQ(event, nullptr);
}

TEST(Events, RecordOnAnIdleStream) {
  NEED_DEVICES(1);
  for (int device = 0; device < DeviceCount(); ++device) {
    const Stream stream(device);
    const Event event(device);
    event.Record(stream);
    EXPECT_OK(D().event_sync(event.get()));
    EXPECT_OK(D().event_query(event.get()));
  }
}

TEST(Events, RecordWithoutAStream) {
  NEED_DEVICES(1);
  const Event event(0);
  ASSERT_OK(D().event_record(event.get(), nullptr));
  EXPECT_OK(D().event_sync(event.get()));
  EXPECT_OK(D().event_query(event.get()));
}

TEST(Events, PendingUntilTheStreamGetsThere) {
  NEED_GATES();
  const Stream stream(0);
  const Event event(0);
  Gate gate(stream);
  event.Record(stream);
  EXPECT_STATUS(FLAGOS_NOT_READY, D().event_query(event.get()));
  gate.Open();
  EXPECT_OK(D().event_sync(event.get()));
  EXPECT_OK(D().event_query(event.get()));
}

TEST(Events, SyncCoversWorkBeforeIt) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_alloc);
  constexpr size_t kSize = 500000;
  const Block block(0, kSize);
  block.Write(Pattern(kSize, 1));
  const Pinned out(kSize);
  const Stream stream(0);
  const Event event(0, FLAGOS_EVENT_BLOCKING);
  CopyOut(out.get(), block, kSize, stream.get());
  event.Record(stream);
  ASSERT_OK(D().event_sync(event.get()));
  EXPECT_TRUE(Same(Pattern(kSize, 1), out.Read()));
}

TEST(Events, DoNotCoverWorkAfterThem) {
  NEED_GATES();
  const Stream stream(0);
  const Event event(0);
  event.Record(stream);
  const Gate gate(stream);
  EXPECT_OK(D().event_sync(event.get()));  // a hang is seen by the watchdog
  EXPECT_OK(D().event_query(event.get()));
  EXPECT_STATUS(FLAGOS_NOT_READY, D().stream_query(stream.get()));
}

TEST(Events, RecordingAgainMovesThem) {
  NEED_GATES();
  const Stream stream(0);
  const Event event(0);
  event.Record(stream);
  ASSERT_OK(D().event_sync(event.get()));
  Gate gate(stream);
  event.Record(stream);
  EXPECT_STATUS(FLAGOS_NOT_READY, D().event_query(event.get()));
  gate.Open();
  EXPECT_OK(D().event_sync(event.get()));
}

TEST(Events, RecordingAgainElsewhereMovesThem) {
  NEED_GATES();
  const Stream held(0);
  const Stream free(0);
  const Event event(0);
  const Gate gate(held);
  event.Record(held);
  event.Record(free);
  EXPECT_OK(D().event_sync(event.get()));  // of the second record: a hang is seen by the watchdog
  EXPECT_STATUS(FLAGOS_NOT_READY, D().stream_query(held.get()));
}

TEST(Events, AWaitKeepsTheRecordOfItsTime) {
  NEED_GATES();
  const Stream first(0);
  const Stream waiting(0);
  const Event event(0);
  event.Record(first);
  const Gate gate(first);
  waiting.Wait(event.get());  // for what was recorded so far
  event.Record(first);        // pending behind the gate
  EXPECT_OK(D().stream_sync(waiting.get()));  // a hang is seen by the watchdog
  EXPECT_STATUS(FLAGOS_NOT_READY, D().event_query(event.get()));
}

TEST(Events, OnAStreamOfAnotherDeviceAreRefused) {
  NEED_DEVICES(2);
  const Stream stream(1);
  const Event event(0);
  EXPECT_FAILS_EITHER(event_record, FLAGOS_INVALID_HANDLE, FLAGOS_INVALID_VALUE, event.get(), stream.get());
  EXPECT_OK(D().event_query(event.get()));
}

TEST(Events, DestroyWhilePending) {
  NEED_GATES();
  const Stream stream(0);
  const Stream waiting(0);
  const Block block(0, 100);
  Event event(0);
  Gate gate(stream);
  ASSERT_OK(D().fill(block.get(), 0, 1, 100, stream.get()));
  event.Record(stream);
  waiting.Wait(event.get());
  ASSERT_OK(D().fill(block.get(), 0, 2, 100, waiting.get()));
  EXPECT_OK(D().event_destroy(event.Release()));
  EXPECT_TRUE(StaysPending(waiting)) << "the wait outlives the handle";
  gate.Open();
  waiting.Sync();
  EXPECT_TRUE(Same(Bytes(100, 2), block.Read()));
}

TEST(Events, ManyAreMadeAndDestroyed) {
  NEED_DEVICES(1);
  const Stream stream(0);
  for (int i = 0; i < 2000; ++i) {
    const Event event(0);
    event.Record(stream);
  }
  stream.Sync();
}

TEST(Events, OutliveTheirStream) {
  NEED_DEVICES(1);
  const Event event(0);
  {
    const Stream stream(0);
    event.Record(stream);
  }
  EXPECT_OK(D().event_sync(event.get()));
  EXPECT_OK(D().event_query(event.get()));
}

// ---- Waits

TEST(Waits, AcrossStreams) {
  NEED_GATES();
  const Stream first(0);
  const Stream second(0);
  const Event event(0);
  const Block block(0, 1000);
  Gate gate(first);
  ASSERT_OK(D().fill(block.get(), 0, 1, 1000, first.get()));
  event.Record(first);
  second.Wait(event.get());  // must not block the host
  ASSERT_OK(D().fill(block.get(), 0, 2, 1000, second.get()));
  EXPECT_TRUE(StaysPending(second));
  gate.Open();
  second.Sync();
  EXPECT_OK(D().event_query(event.get())) << "the second was behind it";
  EXPECT_TRUE(Same(Bytes(1000, 2), block.Read()));
}

TEST(Waits, AcrossDevices) {
  NEED_GATES();
  NEED_DEVICES(2);
  constexpr size_t kSize = 10000;
  const Stream first(0);
  const Stream second(1);
  const Event event(0);
  const Block a(0, kSize);
  const Block b(1, kSize);
  a.Write(Bytes(kSize, 0));
  Gate gate(first);
  ASSERT_OK(D().fill(a.get(), 0, 9, kSize, first.get()));
  event.Record(first);
  second.Wait(event.get());
  CopyBlock(b, a, kSize, second.get());
  EXPECT_TRUE(StaysPending(second));
  gate.Open();
  second.Sync();
  EXPECT_TRUE(Same(Bytes(kSize, 9), b.Read()));
}

TEST(Waits, OnTheOwnStreamDoNothing) {
  NEED_DEVICES(1);
  const Stream stream(0);
  const Event event(0);
  event.Record(stream);
  stream.Wait(event.get());
  EXPECT_OK(D().stream_sync(stream.get()));
}

TEST(Waits, OfManyStreamsForOneEvent) {
  NEED_GATES();
  const Stream first(0);
  const Event event(0);
  Gate gate(first);
  event.Record(first);
  std::vector<std::unique_ptr<Stream>> waiting;
  for (int i = 0; i < 16; ++i) {
    waiting.push_back(std::make_unique<Stream>(i % DeviceCount()));
    waiting.back()->Wait(event.get());
    EXPECT_TRUE(StaysPending(*waiting.back()));
  }
  gate.Open();
  for (const auto& stream : waiting) stream->Sync();
}

TEST(Waits, OfOneStreamForManyEvents) {
  NEED_GATES();
  const Stream waiting(0);
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  std::vector<std::unique_ptr<Gate>> gates;
  for (int i = 0; i < 8; ++i) {
    streams.push_back(std::make_unique<Stream>(0));
    events.push_back(std::make_unique<Event>(0));
    gates.push_back(std::make_unique<Gate>(*streams[i]));
    events[i]->Record(*streams[i]);
    waiting.Wait(events[i]->get());
  }
  for (const auto& gate : gates) {
    EXPECT_TRUE(StaysPending(waiting));
    gate->Open();
  }
  waiting.Sync();
  for (const auto& event : events) EXPECT_OK(D().event_query(event->get()));
}

TEST(Waits, FromAnotherThread) {
  NEED_GATES();
  const Stream first(0);
  const Stream second(0);
  const Event event(0);
  Gate gate(first);
  event.Record(first);
  std::thread([&] { EXPECT_OK(D().stream_wait(second.get(), event.get())); }).join();
  EXPECT_TRUE(StaysPending(second));
  gate.Open();
  second.Sync();
}

// ---- Elapsed time

#define NEED_TIMING()        \
  NEED_DEVICES(1);           \
  NEED_ENTRY(event_elapsed); \
  NEED_CAPABILITY(EVENT_TIMING)

TEST(Elapsed, IsNotNegativeAndAddsUp) {
  NEED_TIMING();
  const Stream stream(0);
  std::vector<std::unique_ptr<Event>> events;
  const Block block(0, 1 << 20);
  for (int i = 0; i < 4; ++i) {
    events.push_back(std::make_unique<Event>(0, FLAGOS_EVENT_TIMING));
    events.back()->Record(stream);
    ASSERT_OK(D().fill(block.get(), 0, static_cast<uint8_t>(i), block.size(), stream.get()));
  }
  stream.Sync();
  float sum = 0;
  for (int i = 1; i < 4; ++i) {
    float ms = -1;
    ASSERT_OK(D().event_elapsed(events[i - 1]->get(), events[i]->get(), &ms));
    EXPECT_GE(ms, 0.0f);
    sum += ms;
  }
  float all = -1;
  ASSERT_OK(D().event_elapsed(events[0]->get(), events[3]->get(), &all));
  EXPECT_NEAR(all, sum, 0.01f + 0.001f * all);
  float backwards = 1;
  ASSERT_OK(D().event_elapsed(events[3]->get(), events[0]->get(), &backwards));
  EXPECT_LE(backwards, 0.0f);
}

TEST(Elapsed, OfOneEventIsZero) {
  NEED_TIMING();
  const Stream stream(0);
  const Event event(0, FLAGOS_EVENT_TIMING);
  event.Record(stream);
  stream.Sync();
  float ms = -1;
  ASSERT_OK(D().event_elapsed(event.get(), event.get(), &ms));
  EXPECT_EQ(ms, 0.0f);
}

TEST(Elapsed, NeedsTheTimingFlag) {
  NEED_DEVICES(1);
  NEED_ENTRY(event_elapsed);
  const Stream stream(0);
  const Event timed(0, FLAGOS_EVENT_TIMING);
  const Event plain(0);
  timed.Record(stream);
  plain.Record(stream);
  stream.Sync();
  float ms = 5;
  EXPECT_FAILS(event_elapsed, FLAGOS_INVALID_HANDLE, timed.get(), plain.get(), &ms);
  EXPECT_FAILS(event_elapsed, FLAGOS_INVALID_HANDLE, plain.get(), timed.get(), &ms);
  EXPECT_EQ(ms, 5) << "out parameters are written on FLAGOS_OK only";
}

TEST(Elapsed, NeedsARecord) {
  NEED_TIMING();
  const Stream stream(0);
  const Event recorded(0, FLAGOS_EVENT_TIMING);
  const Event never(0, FLAGOS_EVENT_TIMING);
  recorded.Record(stream);
  stream.Sync();
  float ms = 0;
  EXPECT_FAILS(event_elapsed, FLAGOS_INVALID_HANDLE, recorded.get(), never.get(), &ms);
  EXPECT_FAILS(event_elapsed, FLAGOS_INVALID_HANDLE, never.get(), recorded.get(), &ms);
}

TEST(Elapsed, AcrossDevicesIsRefused) {
  NEED_TIMING();
  NEED_DEVICES(2);
  const Stream first(0);
  const Stream second(1);
  const Event start(0, FLAGOS_EVENT_TIMING);
  const Event end(1, FLAGOS_EVENT_TIMING);
  start.Record(first);
  end.Record(second);
  first.Sync();
  second.Sync();
  float ms = 0;
  EXPECT_FAILS(event_elapsed, FLAGOS_INVALID_HANDLE, start.get(), end.get(), &ms);
}

TEST(Elapsed, IsNotReadyWhilePending) {
  NEED_TIMING();
  NEED_GATES();
  const Stream stream(0);
  const Event before(0, FLAGOS_EVENT_TIMING);
  const Event after(0, FLAGOS_EVENT_TIMING);
  before.Record(stream);
  ASSERT_OK(D().event_sync(before.get()));
  Gate gate(stream);
  after.Record(stream);
  float ms = 0;
  EXPECT_STATUS(FLAGOS_NOT_READY, D().event_elapsed(before.get(), after.get(), &ms));
  EXPECT_STATUS(FLAGOS_NOT_READY, D().event_elapsed(after.get(), before.get(), &ms));
  gate.Open();
  stream.Sync();
  EXPECT_OK(D().event_elapsed(before.get(), after.get(), &ms));
  EXPECT_GE(ms, 0.0f);
}

}  // namespace
}  // namespace torch_fl::suite
