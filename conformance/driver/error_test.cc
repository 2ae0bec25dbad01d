// SPDX-License-Identifier: Apache-2.0
// Handles that are not handles: each entry that takes one says INVALID_HANDLE, names itself, and harms nothing.
#include "suite.h"

namespace torch_fl::suite {
namespace {

void DoNothing(void*) {}

// `copy`, `fill` and `event_record` take NULL for "synchronous"; the others do not.
void ExpectBadStream(flagos_stream_t bad) {
  constexpr flagos_status_t kBad = FLAGOS_INVALID_HANDLE;
  const Block block(0, 4096);
  const Bytes host(64);
  const Event event(0);
  EXPECT_FAILS(stream_query, kBad, bad);
  EXPECT_FAILS(stream_sync, kBad, bad);
  EXPECT_FAILS(stream_wait, kBad, bad, event.get());
  if (D().stream_host_func != nullptr) {
    EXPECT_FAILS(stream_host_func, kBad, bad, DoNothing, nullptr);
  }
  if (Has(FLAGOS_CAP_KERNEL_ORDER)) {
    flagos_kernel_t kernel{};
    kernel.struct_size = sizeof kernel;
    kernel.name = "nothing";
    EXPECT_FAILS(kernel_begin, kBad, bad);
    EXPECT_FAILS(kernel_end, kBad, bad, &kernel);
  }
  if (bad != nullptr) {
    EXPECT_FAILS(copy, kBad, block.get(), 0, host.data(), FLAGOS_HOST, 64, bad);
    EXPECT_FAILS(fill, kBad, block.get(), 0, 1, 64, bad);
    EXPECT_FAILS(event_record, kBad, event.get(), bad);
    EXPECT_OK(D().event_query(event.get()));
  }
  EXPECT_FAILS(stream_destroy, kBad, bad);
}

void ExpectBadEvent(flagos_event_t bad) {
  constexpr flagos_status_t kBad = FLAGOS_INVALID_HANDLE;
  const Stream stream(0);
  EXPECT_FAILS(event_query, kBad, bad);
  EXPECT_FAILS(event_sync, kBad, bad);
  EXPECT_FAILS(event_record, kBad, bad, stream.get());
  EXPECT_FAILS(stream_wait, kBad, stream.get(), bad);
  if (D().event_elapsed != nullptr) {
    const Event timed(0, FLAGOS_EVENT_TIMING);
    timed.Record(stream);
    stream.Sync();
    float ms = 0;
    EXPECT_FAILS(event_elapsed, kBad, timed.get(), bad, &ms);
    EXPECT_FAILS(event_elapsed, kBad, bad, timed.get(), &ms);
  }
  EXPECT_FAILS(event_destroy, kBad, bad);
  EXPECT_OK(D().stream_sync(stream.get()));
}

TEST(Handles, NullStream) {
  NEED_DEVICES(1);
  ExpectBadStream(nullptr);
}

TEST(Handles, NullEvent) {
  NEED_DEVICES(1);
  ExpectBadEvent(nullptr);
}

TEST(Handles, DestroyedStream) {
  NEED_DEVICES(1);
  Stream stream(0);
  const flagos_stream_t handle = stream.Release();
  ASSERT_OK(D().stream_destroy(handle));
  ExpectBadStream(handle);
}

TEST(Handles, DestroyedEvent) {
  NEED_DEVICES(1);
  Event event(0);
  const flagos_event_t handle = event.Release();
  ASSERT_OK(D().event_destroy(handle));
  ExpectBadEvent(handle);
}

TEST(Handles, ForeignStream) {
  NEED_DEVICES(1);
  alignas(64) static uint8_t memory[4096];  // readable, and nobody's stream
  ExpectBadStream(reinterpret_cast<flagos_stream_t>(memory));
}

TEST(Handles, ForeignEvent) {
  NEED_DEVICES(1);
  alignas(64) static uint8_t memory[4096];
  ExpectBadEvent(reinterpret_cast<flagos_event_t>(memory));
}

TEST(Handles, WithoutADeviceThereIsNone) {
  EXPECT_FAILS(stream_query, FLAGOS_INVALID_HANDLE, nullptr);
  EXPECT_FAILS(stream_sync, FLAGOS_INVALID_HANDLE, nullptr);
  EXPECT_FAILS(stream_destroy, FLAGOS_INVALID_HANDLE, nullptr);
  EXPECT_FAILS(event_query, FLAGOS_INVALID_HANDLE, nullptr);
  EXPECT_FAILS(event_sync, FLAGOS_INVALID_HANDLE, nullptr);
  EXPECT_FAILS(event_destroy, FLAGOS_INVALID_HANDLE, nullptr);
}

TEST(Errors, AFailedCallLeavesTheStreamUsable) {
  NEED_DEVICES(1);
  const Stream stream(0);
  const Block block(0, 64);
  EXPECT_FAILS(fill, FLAGOS_INVALID_VALUE, block.get(), 0, 1, 65, stream.get());
  EXPECT_OK(D().stream_sync(stream.get()));
  ASSERT_OK(D().fill(block.get(), 0, 2, 64, stream.get()));
  EXPECT_OK(D().stream_sync(stream.get()));
  EXPECT_TRUE(Same(Bytes(64, 2), block.Read()));
}

TEST(Errors, AFailedCallLeavesTheEventAsItWas) {
  NEED_GATES();
  const Stream stream(0);
  const Event event(0);
  event.Record(stream);
  const Gate gate(stream);
  Stream dead(0);
  const flagos_stream_t handle = dead.Release();
  ASSERT_OK(D().stream_destroy(handle));
  EXPECT_FAILS(event_record, FLAGOS_INVALID_HANDLE, event.get(), handle);
  EXPECT_OK(D().event_sync(event.get()));
}

TEST(Errors, OutOfMemoryLeavesOutParametersAlone) {
  NEED_DEVICES(1);
  int sentinel = 0;
  void* pointer = &sentinel;
  EXPECT_FAILS(memory_alloc, FLAGOS_OUT_OF_MEMORY, 0, size_t{1} << 50, &pointer);
  EXPECT_EQ(pointer, &sentinel);
}

TEST(Errors, TextNamesWhatWasAskedFor) {
  NEED_DEVICES(1);
  void* pointer = nullptr;
  EXPECT_FAILS(memory_alloc, FLAGOS_OUT_OF_MEMORY, 0, size_t{1} << 50, &pointer);
  EXPECT_EQ(D().last_error()->device, 0);
  EXPECT_STREQ(D().last_error()->function, "memory_alloc");
}

TEST(Errors, ManyFailuresInARow) {
  NEED_DEVICES(1);
  void* pointer = nullptr;
  for (int i = 0; i < 10000; ++i) {
    ASSERT_STATUS(FLAGOS_OUT_OF_MEMORY, D().memory_alloc(0, size_t{1} << 50, &pointer));
    ASSERT_STATUS(FLAGOS_INVALID_DEVICE, D().device_sync(-1));
  }
  const Block block(0, 64);
}

}  // namespace
}  // namespace torch_fl::suite
