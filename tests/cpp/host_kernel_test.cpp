// SPDX-License-Identifier: Apache-2.0
// The host driver's kernel order, external streams and priorities.
#include <sys/resource.h>

#include <cstring>
#include <thread>

#include "host_driver.h"

namespace torch_fl::test {
namespace {

flagos_stream_t NewStream(int device = 0, int priority = 0) {
  flagos_stream_t stream = nullptr;
  EXPECT_EQ(D().stream_create(device, 0, priority, &stream), FLAGOS_OK);
  return stream;
}

unsigned char* NewBlock(int device = 0) {
  void* block = nullptr;
  EXPECT_EQ(D().memory_alloc(device, 64, &block), FLAGOS_OK);
  return static_cast<unsigned char*>(block);
}

flagos_kernel_t Kernel(const char* name, const flagos_access_t* accesses, size_t count) {
  return {sizeof(flagos_kernel_t), name, accesses, count};
}

bool Lazy() { return (D().capabilities() & FLAGOS_CAP_KERNEL_ORDER) != 0; }

TEST(HostKernel, RunsBetweenWhatIsQueued) {
  InQueueModes({{"FLAGOS_HOST_PROTECT", "1"}}, [] {
    flagos_stream_t stream = NewStream();
    flagos_stream_t before = NewStream();
    flagos_stream_t other = NewStream();
    flagos_event_t event = nullptr;
    ASSERT_EQ(D().event_create(0, 0, &event), FLAGOS_OK);
    unsigned char* block = NewBlock();
    unsigned char* elsewhere = NewBlock();
    ASSERT_EQ(D().fill(block, 0, 1, 64, before), FLAGOS_OK);
    ASSERT_EQ(D().event_record(event, before), FLAGOS_OK);
    ASSERT_EQ(D().stream_wait(stream, event), FLAGOS_OK);
    ASSERT_EQ(D().fill(block, 0, 2, 32, stream), FLAGOS_OK);
    ASSERT_EQ(D().fill(elsewhere, 0, 9, 64, other), FLAGOS_OK);
    ASSERT_EQ(D().kernel_begin(stream), FLAGOS_OK);
    EXPECT_EQ(View(block)[0], 2);
    EXPECT_EQ(View(block)[63], 1);
    if (Lazy()) {
      EXPECT_EQ(View(elsewhere)[0], 0) << "orders nothing else";
    }
    View(block)[0] = 3;
    const flagos_access_t access{block, 64, 1};
    const flagos_kernel_t kernel = Kernel("test::add", &access, 1);
    ASSERT_EQ(D().kernel_end(stream, &kernel), FLAGOS_OK);
    ASSERT_EQ(D().copy(block + 32, 0, block, 0, 1, stream), FLAGOS_OK);
    ASSERT_EQ(D().stream_sync(stream), FLAGOS_OK);
    EXPECT_EQ(View(block)[32], 3);
  });
}

TEST(HostKernel, StaysPendingInLazyMode) {
  InQueueModes({}, [] {
    flagos_stream_t stream = NewStream();
    flagos_event_t event = nullptr;
    ASSERT_EQ(D().event_create(0, 0, &event), FLAGOS_OK);
    const flagos_kernel_t kernel = Kernel("test::add", nullptr, 0);
    const flagos_status_t first = Lazy() ? FLAGOS_NOT_READY : FLAGOS_OK;
    for (int round = 0; round < 3; ++round) {
      ASSERT_EQ(D().kernel_begin(stream), FLAGOS_OK);
      ASSERT_EQ(D().kernel_end(stream, &kernel), FLAGOS_OK);
      EXPECT_EQ(D().stream_query(stream), first);
      while (D().stream_query(stream) == FLAGOS_NOT_READY) std::this_thread::yield();
      ASSERT_EQ(D().kernel_begin(stream), FLAGOS_OK);
      ASSERT_EQ(D().kernel_end(stream, &kernel), FLAGOS_OK);
      ASSERT_EQ(D().event_record(event, stream), FLAGOS_OK);
      EXPECT_EQ(D().event_query(event), first);
      ASSERT_EQ(D().event_sync(event), FLAGOS_OK);
      EXPECT_EQ(D().event_query(event), FLAGOS_OK);
      EXPECT_EQ(D().stream_query(stream), FLAGOS_OK);
    }
  });
}

TEST(HostKernel, AccessesMustLieInLiveMemory) {
  InQueueModes({{"FLAGOS_HOST_DEVICES", "2"}}, [] {
    flagos_stream_t stream = NewStream();
    unsigned char* block = NewBlock();
    unsigned char* far = NewBlock(1);
    void* reserved = nullptr;
    constexpr size_t kUnit = size_t{2} << 20;
    ASSERT_EQ(D().memory_reserve(0, 2 * kUnit, &reserved), FLAGOS_OK);
    ASSERT_EQ(D().memory_map(0, reserved, kUnit), FLAGOS_OK);
    auto* mapped = static_cast<unsigned char*>(reserved);
    const auto end = [&](const void* pointer, size_t size) {
      const flagos_access_t accesses[] = {{block, 64, 0}, {pointer, size, 1}};
      const flagos_kernel_t kernel = Kernel("test::add", accesses, 2);
      return D().kernel_end(stream, &kernel);
    };
    EXPECT_EQ(end(mapped, kUnit), FLAGOS_OK);
    EXPECT_EQ(end(nullptr, 0), FLAGOS_OK);
    ASSERT_EQ(D().stream_sync(stream), FLAGOS_OK);
    int host = 0;
    for (const auto& [pointer, size] : {std::pair<const void*, size_t>{block, 65},
                                        {block + 63, 2},
                                        {&host, 4},
                                        {nullptr, 1},
                                        {far, 64},
                                        {mapped + kUnit - 1, 2},
                                        {mapped + kUnit, 1}}) {
      ExpectFails(end(pointer, size), FLAGOS_INVALID_VALUE, "kernel_end");
      char address[32];
      std::snprintf(address, sizeof address, "%p", pointer);
      const std::string text = D().last_error()->vendor_text;
      EXPECT_NE(text.find("test::add wrote"), std::string::npos) << text;
      EXPECT_NE(text.find(address), std::string::npos) << text;
    }
    EXPECT_EQ(D().stream_query(stream), FLAGOS_OK) << "a refused kernel leaves nothing behind";
    ASSERT_EQ(D().memory_free(0, block), FLAGOS_OK);
    ExpectFails(end(nullptr, 0), FLAGOS_INVALID_VALUE, "kernel_end");  // the first access is freed memory
    ExpectFails(D().kernel_end(stream, nullptr), FLAGOS_INVALID_VALUE, "kernel_end");
    const flagos_kernel_t empty = Kernel("test::add", nullptr, 1);
    ExpectFails(D().kernel_end(stream, &empty), FLAGOS_INVALID_VALUE, "kernel_end");
    const flagos_kernel_t fine = Kernel(nullptr, nullptr, 0);
    EXPECT_EQ(D().kernel_end(stream, &fine), FLAGOS_OK);
    ExpectFails(D().kernel_begin(nullptr), FLAGOS_INVALID_HANDLE, "kernel_begin");
    ExpectFails(D().kernel_end(nullptr, &fine), FLAGOS_INVALID_HANDLE, "kernel_end");
  });
}

TEST(HostKernel, BeginsWhileWorkersCopy) {
  InQueueModes({}, [] {
    flagos_stream_t busy = NewStream();
    flagos_stream_t stream = NewStream();
    void* big[2] = {};
    constexpr size_t kSize = size_t{8} << 20;
    for (void*& block : big) ASSERT_EQ(D().memory_alloc(0, kSize, &block), FLAGOS_OK);
    unsigned char* block = NewBlock();
    ASSERT_EQ(D().fill(big[0], 0, 1, kSize, busy), FLAGOS_OK);
    for (int i = 0; i < 20; ++i) ASSERT_EQ(D().copy(big[1], 0, big[0], 0, kSize, busy), FLAGOS_OK);
    D().stream_query(busy);  // lets it go in lazy mode
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(D().fill(block, 0, static_cast<uint8_t>(i), 64, stream), FLAGOS_OK);
      ASSERT_EQ(D().kernel_begin(stream), FLAGOS_OK);
      EXPECT_EQ(View(block)[0], i);
      const flagos_access_t access{block, 64, 1};
      const flagos_kernel_t kernel = Kernel("test::add", &access, 1);
      ASSERT_EQ(D().kernel_end(stream, &kernel), FLAGOS_OK);
    }
    ASSERT_EQ(D().device_sync(0), FLAGOS_OK);
    EXPECT_EQ(View(big[1])[kSize - 1], 1);
  });
}

TEST(HostStream, Wrapped) {
  InQueueModes({{"FLAGOS_HOST_DEVICES", "2"}}, [] {
    flagos_stream_t stream = NewStream();
    void* native = D().stream_native(stream);
    ASSERT_NE(native, nullptr);
    flagos_stream_t wrapper = nullptr;
    ASSERT_EQ(D().stream_wrap(0, native, &wrapper), FLAGOS_OK);
    EXPECT_NE(wrapper, stream);
    EXPECT_EQ(D().stream_native(wrapper), native);
    unsigned char* block = NewBlock();
    // One queue behind both handles.
    ASSERT_EQ(D().fill(block, 0, 1, 64, stream), FLAGOS_OK);
    ASSERT_EQ(D().copy(block + 32, 0, block, 0, 32, wrapper), FLAGOS_OK);
    ASSERT_EQ(D().fill(block, 0, 2, 32, stream), FLAGOS_OK);
    if (Lazy()) {
      EXPECT_EQ(D().stream_query(wrapper), FLAGOS_NOT_READY);
    }
    ASSERT_EQ(D().stream_sync(wrapper), FLAGOS_OK);
    EXPECT_EQ(D().stream_query(stream), FLAGOS_OK);
    EXPECT_EQ(View(block)[0], 2);
    EXPECT_EQ(View(block)[63], 1);
    ASSERT_EQ(D().fill(block, 0, 3, 64, wrapper), FLAGOS_OK);
    ASSERT_EQ(D().stream_destroy(wrapper), FLAGOS_OK);
    ExpectFails(D().stream_sync(wrapper), FLAGOS_INVALID_HANDLE, "stream_sync");
    ExpectFails(D().stream_destroy(wrapper), FLAGOS_INVALID_HANDLE, "stream_destroy");
    if (Lazy()) {
      EXPECT_EQ(View(block)[0], 2) << "destroying a wrapper lets nothing run";
    }
    ASSERT_EQ(D().stream_sync(stream), FLAGOS_OK);
    EXPECT_EQ(View(block)[0], 3);

    flagos_stream_t unused = nullptr;
    ExpectFails(D().stream_wrap(0, nullptr, &unused), FLAGOS_INVALID_HANDLE, "stream_wrap");
    ExpectFails(D().stream_wrap(0, &unused, &unused), FLAGOS_INVALID_HANDLE, "stream_wrap");
    ExpectFails(D().stream_wrap(0, wrapper, &unused), FLAGOS_INVALID_HANDLE, "stream_wrap");
    ExpectFails(D().stream_wrap(1, native, &unused), FLAGOS_INVALID_HANDLE, "stream_wrap");
    ExpectFails(D().stream_wrap(2, native, &unused), FLAGOS_INVALID_DEVICE, "stream_wrap");
    EXPECT_EQ(unused, nullptr);
    EXPECT_EQ(D().stream_native(nullptr), nullptr);
    // A wrapper of a stream that is gone.
    ASSERT_EQ(D().stream_wrap(0, native, &wrapper), FLAGOS_OK);
    ASSERT_EQ(D().stream_destroy(stream), FLAGOS_OK);
    ExpectFails(D().fill(block, 0, 1, 64, wrapper), FLAGOS_INVALID_HANDLE, "fill");
    ExpectFails(D().stream_wrap(0, native, &unused), FLAGOS_INVALID_HANDLE, "stream_wrap");
    EXPECT_EQ(D().stream_destroy(wrapper), FLAGOS_OK);
  });
}

TEST(HostStream, ExternalThroughTheRuntime) {
  InQueueModes({}, [] {
    flagos_stream_t mine = NewStream();
    runtime::Stream* stream = runtime::ExternalStream(0, D().stream_native(mine));
    EXPECT_EQ(runtime::StreamNative(stream), D().stream_native(mine));
    runtime::Stream* standard = runtime::ExchangeCurrentStream(stream);
    void* block = runtime::Allocate(0, 64);
    runtime::Fill(block, 0, 6, 64);
    ASSERT_EQ(D().stream_sync(mine), FLAGOS_OK);
    EXPECT_EQ(View(block)[0], 6);
    runtime::ExchangeCurrentStream(standard);
  });
}

int WorkerNice(flagos_stream_t stream) {
  static std::atomic<int> nice;
  EXPECT_EQ(D().stream_host_func(stream, [](void*) { nice = getpriority(PRIO_PROCESS, 0); }, nullptr), FLAGOS_OK);
  EXPECT_EQ(D().stream_sync(stream), FLAGOS_OK);
  return nice;
}

TEST(HostStream, LowPriorityGivesWayOnceThereIsAHighOne) {
  InQueueModes({}, [] {
    EXPECT_NE(D().capabilities() & FLAGOS_CAP_STREAM_PRIORITY, 0u);
    int32_t least = 9;
    int32_t greatest = 9;
    ASSERT_EQ(D().stream_priority_range(0, &least, &greatest), FLAGOS_OK);
    EXPECT_EQ(least, 0);
    EXPECT_EQ(greatest, -1);
    const int ours = getpriority(PRIO_PROCESS, 0);
    flagos_stream_t early = NewStream(0, 0);
    flagos_stream_t unstarted = NewStream(0, 0);
    EXPECT_EQ(WorkerNice(early), ours);
    flagos_stream_t high = NewStream(0, -7);  // the nearest is -1
    flagos_stream_t late = NewStream(0, 3);   // the nearest is 0
    NewStream(0, -1);
    EXPECT_EQ(WorkerNice(high), ours);
    const int low = std::min(ours + 5, 19);
    for (flagos_stream_t stream : {early, unstarted, late}) EXPECT_EQ(WorkerNice(stream), low);
  });
}

}  // namespace
}  // namespace torch_fl::test
