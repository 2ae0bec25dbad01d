// SPDX-License-Identifier: Apache-2.0
// Queue mode lazy: what runs when, without a sleep, a gate or luck.
#include <cstring>
#include <memory>
#include <thread>

#include "host_driver.h"

namespace torch_fl::test {
namespace {

const Environment kLazy{{"FLAGOS_HOST_QUEUE", "lazy"}};
const Environment kLazyPair{{"FLAGOS_HOST_QUEUE", "lazy"}, {"FLAGOS_HOST_DEVICES", "2"}};

flagos_stream_t NewStream(int device = 0) {
  flagos_stream_t stream = nullptr;
  EXPECT_EQ(D().stream_create(device, 0, 0, &stream), FLAGOS_OK);
  return stream;
}

flagos_event_t NewEvent(int device = 0, uint32_t flags = FLAGOS_EVENT_DEFAULT) {
  flagos_event_t event = nullptr;
  EXPECT_EQ(D().event_create(device, flags, &event), FLAGOS_OK);
  return event;
}

unsigned char* NewBlock(size_t size = 64, int device = 0) {
  void* block = nullptr;
  EXPECT_EQ(D().memory_alloc(device, size, &block), FLAGOS_OK);
  return static_cast<unsigned char*>(block);
}

void QueueFill(unsigned char* block, uint8_t value, flagos_stream_t stream, int device = 0) {
  ASSERT_EQ(D().fill(block, device, value, 64, stream), FLAGOS_OK);
}

// A counter that queued work raises.
struct Steps {
  std::atomic<int> done{0};
  void Queue(flagos_stream_t stream) {
    EXPECT_EQ(D().stream_host_func(stream, [](void* data) { ++static_cast<Steps*>(data)->done; }, this), FLAGOS_OK);
  }
};

TEST(HostLazy, AReaderWithoutAWaitSeesStaleBytes) {
  InBoundedChild(kLazy, [] {
    unsigned char* block = NewBlock();
    flagos_stream_t stream = NewStream();
    QueueFill(block, 7, stream);
    EXPECT_EQ(View(block)[0], 0);
    ASSERT_EQ(D().stream_sync(stream), FLAGOS_OK);
    EXPECT_EQ(View(block)[0], 7);
  });
}

TEST(HostLazy, AStreamWithoutAWaitSeesStaleBytes) {
  for (const bool wait : {false, true}) {
    InBoundedChild(kLazy, [wait] {
      unsigned char* block = NewBlock();
      unsigned char* copy = NewBlock();
      flagos_stream_t writer = NewStream();
      flagos_stream_t reader = NewStream();
      flagos_event_t event = NewEvent();
      QueueFill(block, 7, writer);
      ASSERT_EQ(D().event_record(event, writer), FLAGOS_OK);
      if (wait) {
        ASSERT_EQ(D().stream_wait(reader, event), FLAGOS_OK);
      }
      ASSERT_EQ(D().copy(copy, 0, block, 0, 64, reader), FLAGOS_OK);
      ASSERT_EQ(D().stream_sync(reader), FLAGOS_OK);
      EXPECT_EQ(View(copy)[0], wait ? 7 : 0);
    });
  }
}

TEST(HostLazy, PinnedCopiesArriveWhenWaitedFor) {
  InBoundedChild(kLazy, [] {
    unsigned char* block = NewBlock();
    flagos_stream_t stream = NewStream();
    void* memory = nullptr;
    ASSERT_EQ(D().host_alloc(64, &memory), FLAGOS_OK);
    auto* pinned = static_cast<unsigned char*>(memory);
    std::memset(pinned, 1, 64);
    QueueFill(block, 7, stream);
    ASSERT_EQ(D().copy(pinned, FLAGOS_HOST, block, 0, 64, stream), FLAGOS_OK);
    EXPECT_EQ(pinned[0], 1);
    ASSERT_EQ(D().stream_sync(stream), FLAGOS_OK);
    EXPECT_EQ(pinned[0], 7);
    std::memset(pinned, 2, 64);
    ASSERT_EQ(D().copy(block, 0, pinned, FLAGOS_HOST, 64, stream), FLAGOS_OK);
    std::memset(pinned, 3, 64);  // too early
    ASSERT_EQ(D().stream_sync(stream), FLAGOS_OK);
    EXPECT_EQ(View(block)[0], 3);
  });
}

TEST(HostLazy, PageableCopies) {
  InBoundedChild(kLazy, [] {
    unsigned char* block = NewBlock();
    flagos_stream_t stream = NewStream();
    flagos_stream_t other = NewStream();
    std::vector<unsigned char> host(64, 4);
    Steps elsewhere;
    elsewhere.Queue(other);
    ASSERT_EQ(D().copy(block, 0, host.data(), FLAGOS_HOST, 64, stream), FLAGOS_OK);
    std::fill(host.begin(), host.end(), 5);
    EXPECT_EQ(View(block)[0], 0) << "read, not yet written";
    ASSERT_EQ(D().copy(host.data(), FLAGOS_HOST, block, 0, 64, stream), FLAGOS_OK);
    EXPECT_EQ(host[0], 4) << "in place when the call returns";
    EXPECT_EQ(elsewhere.done, 0);
  });
}

TEST(HostLazy, AsksFalseThenTrue) {
  InBoundedChild(kLazy, [] {
    unsigned char* block = NewBlock();
    flagos_stream_t stream = NewStream();
    flagos_event_t event = NewEvent();
    EXPECT_EQ(D().stream_query(stream), FLAGOS_OK) << "nothing was queued";
    EXPECT_EQ(D().event_query(event), FLAGOS_OK) << "never recorded";
    ASSERT_EQ(D().event_record(event, stream), FLAGOS_OK);
    EXPECT_EQ(D().event_query(event), FLAGOS_OK) << "recorded behind nothing";
    for (int round = 0; round < 3; ++round) {
      QueueFill(block, 1, stream);
      EXPECT_EQ(D().stream_query(stream), FLAGOS_NOT_READY);
      while (D().stream_query(stream) == FLAGOS_NOT_READY) std::this_thread::yield();
      QueueFill(block, 2, stream);
      ASSERT_EQ(D().event_record(event, stream), FLAGOS_OK);
      Steps later;
      later.Queue(stream);
      EXPECT_EQ(D().event_query(event), FLAGOS_NOT_READY);
      while (D().event_query(event) == FLAGOS_NOT_READY) std::this_thread::yield();
      EXPECT_EQ(View(block)[0], 2);
      EXPECT_EQ(later.done, 0) << "behind the event";
      ASSERT_EQ(D().stream_sync(stream), FLAGOS_OK);
      EXPECT_EQ(D().last_error()->status, FLAGOS_OK);
    }
  });
}

TEST(HostLazy, ElapsedIsPendingFirst) {
  InBoundedChild(kLazy, [] {
    flagos_stream_t stream = NewStream();
    flagos_event_t start = NewEvent(0, FLAGOS_EVENT_TIMING);
    flagos_event_t end = NewEvent(0, FLAGOS_EVENT_TIMING);
    unsigned char* block = NewBlock();
    ASSERT_EQ(D().event_record(start, stream), FLAGOS_OK);
    QueueFill(block, 1, stream);
    ASSERT_EQ(D().event_record(end, stream), FLAGOS_OK);
    float ms = -1;
    EXPECT_EQ(D().event_elapsed(start, end, &ms), FLAGOS_NOT_READY);
    EXPECT_EQ(ms, -1);
    while (D().event_elapsed(start, end, &ms) == FLAGOS_NOT_READY) std::this_thread::yield();
    EXPECT_GE(ms, 0);
  });
}

TEST(HostLazy, EventSyncGoesNoFurther) {
  InBoundedChild(kLazy, [] {
    flagos_stream_t stream = NewStream();
    flagos_event_t event = NewEvent();
    Steps before;
    Steps behind;
    before.Queue(stream);
    ASSERT_EQ(D().event_record(event, stream), FLAGOS_OK);
    behind.Queue(stream);
    ASSERT_EQ(D().event_sync(event), FLAGOS_OK);
    EXPECT_EQ(before.done, 1);
    EXPECT_EQ(behind.done, 0);
    EXPECT_EQ(D().event_query(event), FLAGOS_OK);
    EXPECT_EQ(D().stream_query(stream), FLAGOS_NOT_READY);
    ASSERT_EQ(D().stream_sync(stream), FLAGOS_OK);
  });
}

TEST(HostLazy, AWaitReleasesAChainAndNoMore) {
  InBoundedChild(kLazyPair, [] {
    // a -> b -> c, each behind an event of the one before; c is on another device.
    flagos_stream_t a = NewStream();
    flagos_stream_t b = NewStream();
    flagos_stream_t c = NewStream(1);
    flagos_event_t on_a = NewEvent();
    flagos_event_t on_b = NewEvent();
    Steps counted;
    Steps behind_a;
    Steps behind_b;
    counted.Queue(a);
    ASSERT_EQ(D().event_record(on_a, a), FLAGOS_OK);
    behind_a.Queue(a);
    ASSERT_EQ(D().stream_wait(b, on_a), FLAGOS_OK);
    counted.Queue(b);
    ASSERT_EQ(D().event_record(on_b, b), FLAGOS_OK);
    behind_b.Queue(b);
    ASSERT_EQ(D().stream_wait(c, on_b), FLAGOS_OK);
    counted.Queue(c);
    EXPECT_EQ(counted.done, 0);
    ASSERT_EQ(D().stream_sync(c), FLAGOS_OK);
    EXPECT_EQ(counted.done, 3);
    EXPECT_EQ(behind_a.done, 0);
    EXPECT_EQ(behind_b.done, 0);
    ASSERT_EQ(D().device_sync(0), FLAGOS_OK);
    EXPECT_EQ(behind_a.done, 1);
    EXPECT_EQ(behind_b.done, 1);
  });
}

TEST(HostLazy, StreamsThatWaitForEachOther) {
  InBoundedChild(kLazy, [] {
    flagos_stream_t a = NewStream();
    flagos_stream_t b = NewStream();
    flagos_event_t event = NewEvent();  // one event, moved all the time
    Steps steps;
    for (int round = 0; round < 100; ++round) {
      for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
        steps.Queue(from);
        ASSERT_EQ(D().event_record(event, from), FLAGOS_OK);
        ASSERT_EQ(D().stream_wait(to, event), FLAGOS_OK);
      }
    }
    EXPECT_EQ(steps.done, 0);
    ASSERT_EQ(D().stream_sync(a), FLAGOS_OK);
    EXPECT_EQ(steps.done, 200);
  });
}

TEST(HostLazy, RecordingAgainDoesNotEndAWait) {
  InBoundedChild(kLazy, [] {
    flagos_stream_t writer = NewStream();
    flagos_stream_t waiter = NewStream();
    flagos_stream_t idle = NewStream();
    flagos_event_t event = NewEvent();
    Steps steps;
    steps.Queue(writer);
    ASSERT_EQ(D().event_record(event, writer), FLAGOS_OK);
    ASSERT_EQ(D().stream_wait(waiter, event), FLAGOS_OK);
    ASSERT_EQ(D().event_record(event, idle), FLAGOS_OK);
    EXPECT_EQ(D().event_query(event), FLAGOS_OK) << "its new point is complete";
    ASSERT_EQ(D().stream_sync(waiter), FLAGOS_OK);
    EXPECT_EQ(steps.done, 1) << "the wait means the old one";
  });
}

TEST(HostLazy, WhatForcesEverything) {
  InBoundedChild(kLazyPair, [] {
    void* pinned = nullptr;
    std::vector<char> registered(64);
    flagos_stream_t first = NewStream();
    flagos_stream_t second = NewStream();
    flagos_stream_t far = NewStream(1);
    const auto force = [&](const char* what, const std::function<flagos_status_t()>& call, bool all_devices) {
      SCOPED_TRACE(what);
      unsigned char* block = NewBlock();
      ASSERT_EQ(D().host_alloc(64, &pinned), FLAGOS_OK);
      ASSERT_EQ(D().host_register(registered.data(), registered.size()), FLAGOS_OK);
      Steps near;
      Steps other;
      near.Queue(first);
      near.Queue(second);
      other.Queue(far);
      EXPECT_EQ(near.done + other.done, 0);
      EXPECT_EQ(call(), FLAGOS_OK);
      EXPECT_EQ(near.done, 2);
      EXPECT_EQ(other.done, all_devices ? 1 : 0);
      ASSERT_EQ(D().device_sync(1), FLAGOS_OK);
      ASSERT_EQ(D().memory_free(0, block), FLAGOS_OK);
      D().host_free(pinned);
      D().host_unregister(registered.data());
    };
    unsigned char* block = NewBlock();
    unsigned char* remote = NewBlock(64, 1);
    char host[64] = {};
    force("device_sync", [&] { return D().device_sync(0); }, false);
    force("memory_free", [&] { return D().memory_free(0, NewBlock()); }, true);
    force("host_free", [&] { return D().host_free(pinned); }, true);
    force("host_unregister", [&] { return D().host_unregister(registered.data()); }, true);
    force("copy to the host", [&] { return D().copy(host, FLAGOS_HOST, block, 0, 64, nullptr); }, false);
    force("copy from the host", [&] { return D().copy(block, 0, host, FLAGOS_HOST, 64, nullptr); }, false);
    force("copy between devices", [&] { return D().copy(block, 0, remote, 1, 64, nullptr); }, true);
    force("fill", [&] { return D().fill(block, 0, 1, 64, nullptr); }, false);
    flagos_event_t event = NewEvent();
    force("event_record", [&] { return D().event_record(event, nullptr); }, false);
    EXPECT_EQ(D().event_query(event), FLAGOS_OK);
  });
}

TEST(HostLazy, WhatForcesNothing) {
  InBoundedChild(kLazy, [] {
    flagos_stream_t stream = NewStream();
    flagos_stream_t other = NewStream();
    flagos_event_t event = NewEvent();
    Steps steps;
    steps.Queue(stream);
    ASSERT_EQ(D().event_record(event, stream), FLAGOS_OK);
    ASSERT_EQ(D().stream_wait(other, event), FLAGOS_OK);
    NewBlock();
    NewStream();
    flagos_pointer_info_t info{};
    info.struct_size = sizeof info;
    ASSERT_EQ(D().pointer_info(&info, &info), FLAGOS_OK);
    ASSERT_EQ(D().memory_free(0, nullptr), FLAGOS_OK);
    ASSERT_EQ(D().copy(nullptr, 0, nullptr, FLAGOS_HOST, 0, nullptr), FLAGOS_OK);
    char host = 0;
    ExpectFails(D().memory_free(0, &host), FLAGOS_INVALID_VALUE, "memory_free");
    ExpectFails(D().host_free(&host), FLAGOS_INVALID_VALUE, "host_free");
    ExpectFails(D().host_unregister(&host), FLAGOS_INVALID_VALUE, "host_unregister");
    ASSERT_EQ(D().event_destroy(event), FLAGOS_OK);
    EXPECT_EQ(steps.done, 0);
    ASSERT_EQ(D().stream_sync(other), FLAGOS_OK);
    EXPECT_EQ(steps.done, 1) << "the wait outlives the event";
  });
}

TEST(HostLazy, DestroyedWithWorkPending) {
  InBoundedChild(kLazy, [] {
    flagos_stream_t stream = NewStream();
    flagos_stream_t before = NewStream();
    flagos_event_t event = NewEvent();
    Steps steps;
    steps.Queue(before);
    ASSERT_EQ(D().event_record(event, before), FLAGOS_OK);
    ASSERT_EQ(D().stream_wait(stream, event), FLAGOS_OK);
    steps.Queue(stream);
    flagos_event_t last = NewEvent();
    ASSERT_EQ(D().event_record(last, stream), FLAGOS_OK);
    EXPECT_EQ(steps.done, 0);
    ASSERT_EQ(D().stream_destroy(stream), FLAGOS_OK);
    EXPECT_EQ(D().event_sync(last), FLAGOS_OK) << "pending work still runs";
    EXPECT_EQ(steps.done, 2);
    ASSERT_EQ(D().event_destroy(event), FLAGOS_OK);
  });
}

TEST(HostLazy, DestroyAloneReleases) {
  InBoundedChild(kLazy, [] {
    static std::atomic<bool> ran{false};
    flagos_stream_t stream = NewStream();
    D().stream_host_func(
        stream,
        [](void*) {
          ran = true;
          ran.notify_all();
        },
        nullptr);
    ASSERT_EQ(D().stream_destroy(stream), FLAGOS_OK);
    ran.wait(false);
  });
}

TEST(HostLazy, ExitWithWorkPending) {
  InQueueModes({}, [] {
    flagos_stream_t stream = NewStream();
    flagos_stream_t other = NewStream();
    flagos_event_t event = NewEvent();
    unsigned char* block = NewBlock();
    static std::atomic<bool> never{false};
    D().stream_host_func(stream, [](void*) { never.wait(false); }, nullptr);
    QueueFill(block, 1, stream);
    ASSERT_EQ(D().event_record(event, stream), FLAGOS_OK);
    ASSERT_EQ(D().stream_wait(other, event), FLAGOS_OK);
    QueueFill(block, 2, other);
    EXPECT_EQ(D().stream_query(other), FLAGOS_NOT_READY);  // its worker waits for the other's, for ever
  });
}

// Writers and readers on many threads, each pair with its own event: the same in both modes, and clean under TSan.
TEST(HostLazy, ManyThreads) {
  InQueueModes({}, [] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        flagos_stream_t writer = NewStream();
        flagos_stream_t reader = NewStream();
        flagos_event_t event = NewEvent();
        unsigned char* block = NewBlock();
        unsigned char* copy = NewBlock();
        for (int i = 0; i < 50; ++i) {
          const auto value = static_cast<uint8_t>(t * 50 + i);
          QueueFill(block, value, writer);
          ASSERT_EQ(D().event_record(event, writer), FLAGOS_OK);
          ASSERT_EQ(D().stream_wait(reader, event), FLAGOS_OK);
          ASSERT_EQ(D().copy(copy, 0, block, 0, 64, reader), FLAGOS_OK);
          ASSERT_EQ(D().event_record(event, reader), FLAGOS_OK);
          ASSERT_EQ(D().stream_wait(writer, event), FLAGOS_OK);
          if (i % 3 == 0) {
            ASSERT_EQ(D().kernel_begin(reader), FLAGOS_OK);
          }
          if (i % 3 == 1)
            while (D().event_query(event) == FLAGOS_NOT_READY) std::this_thread::yield();
          if (i % 3 == 2) {
            ASSERT_EQ(D().event_sync(event), FLAGOS_OK);
          }
          EXPECT_EQ(View(copy)[63], value);
        }
        ASSERT_EQ(D().memory_free(0, copy), FLAGOS_OK);
        ASSERT_EQ(D().stream_destroy(writer), FLAGOS_OK);
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

}  // namespace
}  // namespace torch_fl::test
