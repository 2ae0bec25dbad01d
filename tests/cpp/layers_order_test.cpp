// SPDX-License-Identifier: Apache-2.0
// The validate layer and order: right programs pass, programs with one wait missing do not.
#include <thread>

#include "fake_driver.h"

namespace torch_fl::test {
namespace {

constexpr size_t kSize = 4096;

// Two streams and a block on the fake driver, all in validate.
struct Bench {
  const flagos_driver_v1_t& t = InLayers("validate");
  void* block = Block(t, kSize);
  flagos_stream_t a = NewStream(t);  // "stream 1"
  flagos_stream_t b = NewStream(t);  // "stream 2"
  flagos_event_t event = NewEvent(t);

  flagos_status_t Write(flagos_stream_t stream, size_t offset = 0, size_t size = kSize) {
    return t.fill(At(block, offset), 0, 0, size, stream);
  }
  flagos_status_t Read(flagos_stream_t stream, size_t offset = 0, size_t size = kSize) {
    return RunKernel(t, stream, "aten::read", {{At(block, offset), size, 0}});
  }
  flagos_status_t Order(flagos_stream_t earlier, flagos_stream_t later) {
    if (const flagos_status_t status = t.event_record(event, earlier); status != FLAGOS_OK) return status;
    return t.stream_wait(later, event);
  }
  void ExpectUnordered(flagos_status_t status) {
    EXPECT_EQ(status, FLAGOS_UNORDERED);
    EXPECT_EQ(t.last_error()->status, FLAGOS_UNORDERED);
  }
};

void WithBench(const std::function<void(Bench&)>& body) {
  InChild({}, [&] {
    Bench bench;
    body(bench);
    EXPECT_EQ(runtime::GetValidateCounts().misuses, 0u);
  });
}

void ExpectQuiet(const std::function<void(Bench&)>& body) {
  WithBench([&](Bench& bench) {
    body(bench);
    EXPECT_EQ(runtime::GetValidateCounts().unordered, 0u) << Text(bench.t);
  });
}

#define OK(call) ASSERT_EQ(call, FLAGOS_OK) << Text(s.t)

TEST(LayersOrder, WriteThenRead) {
  WithBench([](Bench& s) {
    OK(s.Write(s.a));
    s.ExpectUnordered(s.Read(s.b));
    char expected[512];
    std::snprintf(expected, sizeof expected,
                  "read by aten::read on stream 2 (#2) is not ordered behind write by fill on stream 1 (#1): flagos:0 "
                  "%p +4096 bytes; record an event on stream 1 and let stream 2 wait for it, or call record_stream "
                  "before the memory is freed",
                  s.block);
    EXPECT_EQ(Text(s.t), expected);
    EXPECT_STREQ(s.t.last_error()->function, "kernel_end");
    EXPECT_EQ(runtime::GetValidateCounts().unordered, 1u);
    EXPECT_EQ(runtime::GetValidateCounts().accesses, 2u);
  });
}

TEST(LayersOrder, ReadThenWrite) {
  WithBench([](Bench& s) {
    OK(s.Read(s.a));
    s.ExpectUnordered(s.Write(s.b));
    EXPECT_EQ(
        Text(s.t).rfind("write by fill on stream 2 (#2) is not ordered behind read by aten::read on stream 1 (#1)", 0),
        0u)
        << Text(s.t);
    EXPECT_EQ(Fake().calls.back(), "stream_sync")
        << "the fill never reached the driver; the last call is kernel_begin's";
  });
}

TEST(LayersOrder, WriteThenWrite) {
  WithBench([](Bench& s) {
    OK(s.Write(s.a));
    s.ExpectUnordered(s.Write(s.b));
    s.ExpectUnordered(RunKernel(s.t, s.b, "aten::mul_", {{s.block, 8, 1}}));
    EXPECT_NE(Text(s.t).find("+8 bytes"), std::string::npos);
  });
}

TEST(LayersOrder, AWriteMustFollowEveryReader) {
  WithBench([](Bench& s) {
    flagos_stream_t c = NewStream(s.t);
    OK(s.Read(s.a));
    OK(s.Read(s.b));
    OK(s.Order(s.a, c));
    s.ExpectUnordered(s.Write(c));
    EXPECT_NE(Text(s.t).find("read by aten::read on stream 2"), std::string::npos) << Text(s.t);
    OK(s.Order(s.b, c));
    OK(s.Write(c));
  });
}

TEST(LayersOrder, KernelsCountAllTheirAccesses) {
  WithBench([](Bench& s) {
    void* other = Block(s.t, kSize);
    OK(RunKernel(s.t, s.a, "aten::add", {{s.block, kSize, 0}, {other, kSize, 1}}));
    OK(s.Read(s.b));
    s.ExpectUnordered(s.t.copy(s.block, 0, other, 0, 64, s.b));
    s.ExpectUnordered(s.t.copy(s.block, 0, other, 0, 64, s.a));
    EXPECT_NE(Text(s.t).find("behind read by aten::read on stream 2"), std::string::npos) << Text(s.t);
  });
}

TEST(LayersOrder, SameStream) {
  ExpectQuiet([](Bench& s) {
    OK(s.Write(s.a));
    OK(s.Read(s.a));
    OK(RunKernel(s.t, s.a, "aten::mul_", {{s.block, kSize, 0}, {s.block, kSize, 1}}));
    OK(s.Write(s.a));
  });
}

TEST(LayersOrder, ReadersNeedNoOrder) {
  ExpectQuiet([](Bench& s) {
    OK(s.Read(s.a));
    OK(s.Read(s.b));
    OK(s.Read(s.a));
  });
}

TEST(LayersOrder, DisjointRanges) {
  ExpectQuiet([](Bench& s) {
    OK(s.Write(s.a, 0, 1024));
    OK(s.Write(s.b, 1024, 1024));
    OK(s.Read(s.a, 0, 1024));
    OK(s.Read(s.b, 1024, 3072));
  });
}

TEST(LayersOrder, OneByteOfOverlap) {
  WithBench([](Bench& s) {
    OK(s.Write(s.a, 0, 1025));
    s.ExpectUnordered(s.Write(s.b, 1024, 1024));
    EXPECT_NE(Text(s.t).find("+1 bytes"), std::string::npos) << Text(s.t);
  });
}

TEST(LayersOrder, EventAndWait) {
  ExpectQuiet([](Bench& s) {
    OK(s.Write(s.a));
    OK(s.Order(s.a, s.b));
    OK(s.Write(s.b));
  });
}

TEST(LayersOrder, TheEventMustBeRecordedBehindTheWork) {
  WithBench([](Bench& s) {
    OK(s.t.event_record(s.event, s.a));
    OK(s.Write(s.a));
    OK(s.t.stream_wait(s.b, s.event));
    s.ExpectUnordered(s.Write(s.b));
  });
}

TEST(LayersOrder, TheWaitMustComeBeforeTheWork) {
  WithBench([](Bench& s) {
    OK(s.Write(s.a));
    OK(s.t.event_record(s.event, s.a));
    s.ExpectUnordered(s.Read(s.b));
    OK(s.t.stream_wait(s.b, s.event));
    OK(s.Read(s.b));
  });
}

TEST(LayersOrder, WaitForAnEventNeverRecorded) {
  WithBench([](Bench& s) {
    OK(s.Write(s.a));
    OK(s.t.stream_wait(s.b, s.event));
    s.ExpectUnordered(s.Read(s.b));
  });
}

TEST(LayersOrder, RecordingAgainMovesTheEvent) {
  WithBench([](Bench& s) {
    flagos_stream_t c = NewStream(s.t);
    OK(s.Write(s.a));
    OK(s.t.event_record(s.event, s.a));
    OK(s.t.event_record(s.event, c));
    OK(s.t.stream_wait(s.b, s.event));
    s.ExpectUnordered(s.Read(s.b));
  });
}

TEST(LayersOrder, WaitsAreTransitive) {
  ExpectQuiet([](Bench& s) {
    flagos_stream_t c = NewStream(s.t);
    flagos_event_t second = NewEvent(s.t);
    OK(s.Write(s.a));
    OK(s.Order(s.a, s.b));
    OK(s.t.event_record(second, s.b));
    OK(s.t.stream_wait(c, second));
    OK(s.t.event_destroy(second));
    OK(s.Write(c));
  });
}

TEST(LayersOrder, SyncsOfTheHost) {
  for (int way = 0; way < 6; ++way) {
    SCOPED_TRACE(way);
    ExpectQuiet([&](Bench& s) {
      OK(s.Write(s.a));
      OK(s.t.event_record(s.event, s.a));
      if (way == 0) {
        OK(s.t.stream_sync(s.a));
      }
      if (way == 1) {
        OK(s.t.event_sync(s.event));
      }
      if (way == 2) {
        OK(s.t.device_sync(0));
      }
      if (way == 3) {
        OK(s.t.stream_query(s.a));
      }
      if (way == 4) {
        OK(s.t.event_query(s.event));
      }
      // Another thread's observation is as good as one's own.
      if (way == 5) {
        std::thread([&] { OK(s.t.stream_sync(s.a)); }).join();
      }
      OK(s.Write(s.b));
    });
  }
}

TEST(LayersOrder, WhatIsNoSync) {
  for (int way = 0; way < 7; ++way) {
    SCOPED_TRACE(way);
    WithBench([&](Bench& s) {
      OK(s.Write(s.a));
      Fake().query = FLAGOS_NOT_READY;
      if (way == 0) {
        EXPECT_EQ(s.t.stream_query(s.a), FLAGOS_NOT_READY);
      }
      if (way == 1) {
        OK(s.t.event_record(s.event, s.a));
        EXPECT_EQ(s.t.event_query(s.event), FLAGOS_NOT_READY);
      }
      if (way == 2) {
        OK(s.t.kernel_begin(s.a));
      }
      if (way == 3) {
        OK(s.t.stream_sync(s.b));
      }
      if (way == 4) {
        OK(s.t.device_sync(1));
      }
      if (way == 5) {
        Fake().next = FLAGOS_VENDOR_ERROR;
        EXPECT_EQ(s.t.stream_sync(s.a), FLAGOS_VENDOR_ERROR);
      }
      if (way == 6) {  // never recorded
        OK(s.t.event_sync(s.event));
      }
      s.ExpectUnordered(s.Write(s.b));
    });
  }
}

TEST(LayersOrder, SynchronousCallsOrderTheirDevices) {
  ExpectQuiet([](Bench& s) {
    OK(s.Write(s.a));
    char host[16];
    OK(s.t.copy(host, FLAGOS_HOST, s.block, 0, sizeof host, nullptr));
    OK(s.Write(s.b));
    OK(s.t.fill(s.block, 0, 1, kSize, nullptr));
    OK(s.Read(s.a));
    OK(s.t.event_record(s.event, nullptr));
    OK(s.Write(s.b));
  });
  WithBench([](Bench& s) {
    // Work on another device's stream is not waited for.
    flagos_stream_t other = NewStream(s.t, 1);
    void* far = Block(s.t, kSize, 1);
    OK(s.t.copy(far, 1, s.block, 0, kSize, other));
    s.ExpectUnordered(s.t.fill(s.block, 0, 1, kSize, nullptr));
    EXPECT_EQ(
        Text(s.t).rfind("write by fill without a stream (#2) is not ordered behind read by copy on stream 3 (#1)", 0),
        0u)
        << Text(s.t);
    EXPECT_NE(Text(s.t).find("synchronize with stream 3 first"), std::string::npos);
    OK(s.t.fill(far, 1, 1, kSize, nullptr));
    OK(s.t.fill(s.block, 0, 1, kSize, nullptr));
  });
}

TEST(LayersOrder, FreedMemoryStartsAfresh) {
  ExpectQuiet([](Bench& s) {
    OK(s.Write(s.a));
    OK(s.t.memory_free(0, s.block));
    Fake().next_address = reinterpret_cast<uintptr_t>(s.block);
    void* again = Block(s.t, kSize);
    ASSERT_EQ(again, s.block);
    OK(s.Write(s.b));
  });
}

TEST(LayersOrder, MemoryThatTheDriverKeepsKeepsItsHistory) {
  WithBench([](Bench& s) {
    OK(s.Write(s.a));
    Fake().next = FLAGOS_VENDOR_ERROR;
    EXPECT_EQ(s.t.memory_free(0, s.block), FLAGOS_VENDOR_ERROR);
    s.ExpectUnordered(s.Write(s.b));
    OK(s.t.memory_free(0, s.block));
  });
}

TEST(LayersOrder, ReuseOnAnotherStream) {
  // What a caching allocator does when a record_stream is missing: the block is handed out again without a driver call.
  WithBench([](Bench& s) {
    OK(s.Read(s.b));  // a side stream uses the block of stream 1
    s.ExpectUnordered(s.Write(s.a));
  });
}

TEST(LayersOrder, FailedWorkIsNoWork) {
  ExpectQuiet([](Bench& s) {
    Fake().next = FLAGOS_OUT_OF_MEMORY;
    EXPECT_EQ(s.Write(s.a), FLAGOS_OUT_OF_MEMORY);
    OK(s.Write(s.b));
  });
}

TEST(LayersOrder, StreamsThatEnded) {
  WithBench([](Bench& s) {
    OK(s.Write(s.a));
    OK(s.t.stream_destroy(s.a));
    flagos_stream_t next = NewStream(s.t);
    s.ExpectUnordered(s.Write(next));
    OK(s.t.device_sync(0));
    OK(s.Write(next));
    // A thousand streams one after the other take no thousand places.
    for (int i = 0; i < 1000; ++i) {
      flagos_stream_t passing = NewStream(s.t);
      OK(s.t.stream_sync(next));
      OK(s.Write(passing));
      OK(s.t.stream_sync(passing));
      OK(s.t.stream_destroy(passing));
    }
    OK(s.Write(next));
  });
}

TEST(LayersOrder, ForeignStreamsWrappedTwiceAreOne) {
  ExpectQuiet([](Bench& s) {
    flagos_stream_t first = nullptr;
    flagos_stream_t second = nullptr;
    OK(s.t.stream_wrap(0, &s, &first));
    OK(s.t.stream_wrap(0, &s, &second));
    OK(s.Write(first));
    OK(s.Write(second));
    OK(s.t.stream_destroy(first));
    OK(s.Write(second));
    flagos_stream_t own = nullptr;
    OK(s.t.stream_sync(second));
    OK(s.t.stream_wrap(0, s.a, &own));  // without stream_native the handle is the native stream
    OK(s.Write(s.a));
    OK(s.Write(own));
  });
}

TEST(LayersOrder, PageLockedMemory) {
  WithBench([](Bench& s) {
    void* pinned = nullptr;
    OK(s.t.host_alloc(kSize, &pinned));
    void* other = Block(s.t, kSize);
    OK(s.t.copy(s.block, 0, pinned, FLAGOS_HOST, kSize, s.a));
    s.ExpectUnordered(s.t.copy(pinned, FLAGOS_HOST, other, 0, kSize, s.b));
    EXPECT_NE(Text(s.t).find("is not ordered behind read by copy on stream 1"), std::string::npos);
    EXPECT_NE(Text(s.t).find(": page-locked host memory "), std::string::npos);
    EXPECT_EQ(Text(s.t).find("record_stream"), std::string::npos);
    s.ExpectUnordered(s.t.host_free(pinned));
    EXPECT_NE(Text(s.t).find("nothing has seen the read by copy on stream 1 (#1) end; synchronize with stream 1 first"),
              std::string::npos)
        << Text(s.t);
    OK(s.t.event_record(s.event, s.a));
    OK(s.t.event_sync(s.event));
    OK(s.t.host_free(pinned));
    EXPECT_EQ(Fake().calls.back(), "host_free");

    char mine[64];
    OK(s.t.host_register(mine, sizeof mine));
    OK(s.t.copy(mine, FLAGOS_HOST, s.block, 0, sizeof mine, s.a));
    s.ExpectUnordered(s.t.host_unregister(mine));
    OK(s.t.stream_sync(s.a));
    OK(s.t.host_unregister(mine));
  });
}

TEST(LayersOrder, HistoryIsForgottenOnceSeen) {
  ExpectQuiet([](Bench& s) {
    void* big = Block(s.t, size_t{1} << 24);
    for (int round = 0; round < 3; ++round) {
      for (size_t i = 0; i < 5000; ++i) {
        OK(RunKernel(s.t, i % 2 != 0 ? s.a : s.b, "aten::read", {{At(big, i * 64), 32, 0}}));
      }
      OK(s.t.stream_sync(s.a));
      OK(s.t.stream_sync(s.b));
    }
    OK(s.t.fill(big, 0, 0, size_t{1} << 24, s.a));
  });
}

TEST(LayersOrder, SweepingKeepsWhatIsOpen) {
  WithBench([](Bench& s) {
    constexpr size_t kSpots = 2000;  // touching; more than one sweep
    void* big = Block(s.t, kSpots * 64);
    void* other = Block(s.t, kSpots * 64);
    flagos_stream_t c = NewStream(s.t);
    const auto spot = [&](flagos_stream_t stream, void* block, size_t i, int32_t is_write) {
      return RunKernel(s.t, stream, "aten::spot", {{At(block, i * 64), 64, is_write}});
    };
    for (size_t i = 0; i < kSpots; ++i) OK(spot(s.b, big, i, 1));
    OK(s.t.stream_sync(s.b));
    for (size_t i = 0; i < kSpots; ++i) OK(spot(i % 2 == 0 ? s.a : c, big, i, 0));
    for (size_t i = 0; i < kSpots; ++i) OK(spot(s.a, big, kSpots - 1 - i, 0));
    for (size_t i = 0; i < kSpots; ++i) OK(spot(s.a, other, i * 7 % kSpots, 0));
    for (size_t i = 0; i < kSpots; ++i) OK(RunKernel(s.t, c, "aten::spot", {{At(other, i * 64), 32, 0}}));
    OK(s.Order(s.a, s.b));
    for (size_t i = 0; i < kSpots; ++i) {
      ASSERT_EQ(spot(s.b, big, i, 1), i % 2 == 0 ? FLAGOS_OK : FLAGOS_UNORDERED) << i;
      ASSERT_EQ(RunKernel(s.t, s.b, "aten::spot", {{At(other, i * 64 + 32), 32, 1}}), FLAGOS_OK) << i;
      ASSERT_EQ(RunKernel(s.t, s.b, "aten::spot", {{At(other, i * 64), 32, 1}}), FLAGOS_UNORDERED) << i;
    }
  });
}

}  // namespace
}  // namespace torch_fl::test
