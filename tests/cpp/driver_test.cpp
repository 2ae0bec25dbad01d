// SPDX-License-Identifier: Apache-2.0
// The host driver through its table, for what the runtime never does.
#include <cstring>

#include "host_driver.h"

namespace torch_fl::test {
namespace {

TEST(HostDriver, Handles) {
  InQueueModes({{"FLAGOS_HOST_DEVICES", "2"}}, [] {
    flagos_stream_t stream = nullptr;
    flagos_event_t event = nullptr;
    ASSERT_EQ(D().stream_create(0, FLAGOS_STREAM_DEFAULT, 0, &stream), FLAGOS_OK);
    ASSERT_EQ(D().event_create(1, FLAGOS_EVENT_DEFAULT, &event), FLAGOS_OK);
    ExpectFails(D().stream_create(0, 8, 0, &stream), FLAGOS_INVALID_VALUE, "stream_create");
    ExpectFails(D().event_create(0, 8, &event), FLAGOS_INVALID_VALUE, "event_create");
    ExpectFails(D().stream_create(2, 0, 0, &stream), FLAGOS_INVALID_DEVICE, "stream_create");
    ExpectFails(D().event_record(event, stream), FLAGOS_INVALID_HANDLE, "event_record");  // other device
    for (const auto bad : {flagos_stream_t{nullptr}, reinterpret_cast<flagos_stream_t>(&stream)}) {
      ExpectFails(D().stream_sync(bad), FLAGOS_INVALID_HANDLE, "stream_sync");
      ExpectFails(D().stream_query(bad), FLAGOS_INVALID_HANDLE, "stream_query");
      ExpectFails(D().stream_destroy(bad), FLAGOS_INVALID_HANDLE, "stream_destroy");
    }
    EXPECT_EQ(D().stream_destroy(stream), FLAGOS_OK);
    ExpectFails(D().stream_sync(stream), FLAGOS_INVALID_HANDLE, "stream_sync");
    EXPECT_EQ(D().event_destroy(event), FLAGOS_OK);
    ExpectFails(D().event_query(event), FLAGOS_INVALID_HANDLE, "event_query");
  });
}

TEST(HostDriver, DestroyedStreamFinishesItsWork) {
  InQueueModes({}, [] {
    flagos_stream_t stream = nullptr;
    ASSERT_EQ(D().stream_create(0, 0, 0, &stream), FLAGOS_OK);
    static std::atomic<bool> open{false};
    static std::atomic<int> ran{0};
    D().stream_host_func(stream, [](void*) { open.wait(false); }, nullptr);
    for (int i = 0; i < 10; ++i) D().stream_host_func(stream, [](void*) { ++ran; }, nullptr);
    EXPECT_EQ(D().stream_query(stream), FLAGOS_NOT_READY);
    EXPECT_EQ(D().stream_destroy(stream), FLAGOS_OK);
    EXPECT_EQ(ran.load(), 0);
    open.store(true);
    open.notify_all();
    EXPECT_EQ(D().device_sync(0), FLAGOS_OK);
    EXPECT_EQ(ran.load(), 10);
  });
}

TEST(HostDriver, HostFunctionsMayNotWait) {
  InQueueModes({}, [] {
    flagos_stream_t stream = nullptr;
    void* block = nullptr;
    ASSERT_EQ(D().stream_create(0, 0, 0, &stream), FLAGOS_OK);
    ASSERT_EQ(D().memory_alloc(0, 64, &block), FLAGOS_OK);
    struct Result {
      void* block;
      flagos_status_t sync, free;
    } result{block, FLAGOS_OK, FLAGOS_OK};
    D().stream_host_func(
        stream,
        [](void* data) {
          auto* out = static_cast<Result*>(data);
          out->sync = D().device_sync(0);
          out->free = D().memory_free(0, out->block);
        },
        &result);
    ASSERT_EQ(D().stream_sync(stream), FLAGOS_OK);
    EXPECT_EQ(result.sync, FLAGOS_INVALID_VALUE);
    EXPECT_EQ(result.free, FLAGOS_INVALID_VALUE);
    EXPECT_EQ(D().last_error()->status, FLAGOS_OK) << "the last error belongs to the thread";
  });
}

TEST(HostDriver, Memory) {
  InQueueModes({{"FLAGOS_HOST_MEMORY", "1M"}}, [] {
    void* block = nullptr;
    void* none = &block;
    EXPECT_EQ(D().memory_alloc(0, 0, &none), FLAGOS_OK);
    EXPECT_EQ(none, nullptr);
    EXPECT_EQ(D().memory_free(0, nullptr), FLAGOS_OK);
    ExpectFails(D().memory_alloc(0, (1u << 20) + 1, &block), FLAGOS_OUT_OF_MEMORY, "memory_alloc");
    ExpectFails(D().memory_alloc(0, ~size_t{0}, &block), FLAGOS_OUT_OF_MEMORY, "memory_alloc");
    for (int round = 0; round < 3; ++round) {  // deterministic: the whole device, again and again
      ASSERT_EQ(D().memory_alloc(0, 1u << 20, &block), FLAGOS_OK);
      void* other = nullptr;
      ExpectFails(D().memory_alloc(0, 1, &other), FLAGOS_OUT_OF_MEMORY, "memory_alloc");
      ExpectFails(D().memory_free(0, static_cast<char*>(block) + 64), FLAGOS_INVALID_VALUE, "memory_free");
      ASSERT_EQ(D().memory_free(0, block), FLAGOS_OK);
      ExpectFails(D().memory_free(0, block), FLAGOS_INVALID_VALUE, "memory_free");
    }
  });
}

TEST(HostDriver, FreeWaitsForPendingWork) {
  InQueueModes({}, [] {
    flagos_stream_t stream = nullptr;
    void* block = nullptr;
    ASSERT_EQ(D().stream_create(0, 0, 0, &stream), FLAGOS_OK);
    ASSERT_EQ(D().memory_alloc(0, 4096, &block), FLAGOS_OK);
    D().stream_host_func(stream, [](void*) { usleep(20000); }, nullptr);
    ASSERT_EQ(D().fill(block, 0, 1, 4096, stream), FLAGOS_OK);
    EXPECT_EQ(D().memory_free(0, block), FLAGOS_OK);
    EXPECT_EQ(D().stream_query(stream), FLAGOS_OK);
  });
}

TEST(HostDriver, PinnedMemoryAndPointers) {
  InQueueModes({}, [] {
    char* pinned = nullptr;
    ASSERT_EQ(D().host_alloc(10000, reinterpret_cast<void**>(&pinned)), FLAGOS_OK);
    flagos_pointer_info_t info{};
    info.struct_size = sizeof info;
    ASSERT_EQ(D().pointer_info(pinned + 9999, &info), FLAGOS_OK);
    EXPECT_EQ(info.space, FLAGOS_SPACE_PINNED);
    EXPECT_EQ(info.base, pinned);
    EXPECT_EQ(info.size, 10000u);
    EXPECT_EQ(info.device, -1);
    ASSERT_EQ(D().pointer_info(pinned + 10000, &info), FLAGOS_OK);
    EXPECT_EQ(info.space, FLAGOS_SPACE_UNKNOWN);
    EXPECT_EQ(info.base, nullptr);

    char* block = nullptr;
    ASSERT_EQ(D().memory_alloc(0, 10000, reinterpret_cast<void**>(&block)), FLAGOS_OK);
    ASSERT_EQ(D().pointer_info(block + 5, &info), FLAGOS_OK);
    EXPECT_EQ(info.space, FLAGOS_SPACE_DEVICE);
    EXPECT_EQ(info.device, 0);
    EXPECT_EQ(info.base, block);
    ASSERT_EQ(D().memory_free(0, block), FLAGOS_OK);
    ASSERT_EQ(D().pointer_info(block + 5, &info), FLAGOS_OK);
    EXPECT_EQ(info.space, FLAGOS_SPACE_UNKNOWN);

    std::vector<char> mine(5000);
    EXPECT_EQ(D().host_register(mine.data(), mine.size()), FLAGOS_OK);
    ExpectFails(D().host_register(mine.data(), mine.size()), FLAGOS_ALREADY, "host_register");
    ASSERT_EQ(D().pointer_info(mine.data(), &info), FLAGOS_OK);
    EXPECT_EQ(info.space, FLAGOS_SPACE_PINNED);
    EXPECT_EQ(D().host_unregister(mine.data()), FLAGOS_OK);
    ExpectFails(D().host_unregister(mine.data()), FLAGOS_INVALID_VALUE, "host_unregister");
    EXPECT_EQ(D().host_free(pinned), FLAGOS_OK);
    ExpectFails(D().host_free(mine.data()), FLAGOS_INVALID_VALUE, "host_free");
  });
}

TEST(HostDriver, PinnedSourcesAreReadWhenTheCopyRuns) {
  InQueueModes({}, [] {
    flagos_stream_t stream = nullptr;
    void* block = nullptr;
    void* pinned = nullptr;
    ASSERT_EQ(D().stream_create(0, 0, 0, &stream), FLAGOS_OK);
    ASSERT_EQ(D().memory_alloc(0, 64, &block), FLAGOS_OK);
    ASSERT_EQ(D().host_alloc(64, &pinned), FLAGOS_OK);
    std::memset(pinned, 1, 64);
    static std::atomic<bool> open{false};
    D().stream_host_func(stream, [](void*) { open.wait(false); }, nullptr);
    ASSERT_EQ(D().copy(block, 0, pinned, FLAGOS_HOST, 64, stream), FLAGOS_OK);
    std::memset(pinned, 2, 64);
    open.store(true);
    open.notify_all();
    ASSERT_EQ(D().stream_sync(stream), FLAGOS_OK);
    EXPECT_EQ(View(block)[0], 2) << "who reuses a pinned source too early sees it here";
  });
}

TEST(HostDriver, Peers) {
  InQueueModes({{"FLAGOS_HOST_DEVICES", "2"}}, [] {
    int32_t can = 0;
    EXPECT_EQ(D().peer_can_access(0, 1, &can), FLAGOS_OK);
    EXPECT_EQ(can, 1);
    EXPECT_EQ(D().peer_enable(0, 1), FLAGOS_OK);
    ExpectFails(D().peer_enable(0, 1), FLAGOS_ALREADY, "peer_enable");
    EXPECT_EQ(D().peer_enable(1, 0), FLAGOS_OK);
    ExpectFails(D().peer_enable(1, 1), FLAGOS_INVALID_VALUE, "peer_enable");
    ExpectFails(D().peer_can_access(0, 2, &can), FLAGOS_INVALID_DEVICE, "peer_can_access");
  });
}

TEST(HostDriver, CallerWithAnOlderInfoStruct) {
  InQueueModes({}, [] {
    struct {
      flagos_device_info_t info;
      char guard[16];
    } buffer;
    std::memset(&buffer, 0x5A, sizeof buffer);
    buffer.info.struct_size = offsetof(flagos_device_info_t, total_memory);
    ASSERT_EQ(D().device_info(0, &buffer.info), FLAGOS_OK);
    EXPECT_EQ(buffer.info.struct_size, offsetof(flagos_device_info_t, total_memory));
    EXPECT_EQ(std::strncmp(buffer.info.name, "simulated", 9), 0);
    EXPECT_EQ(buffer.info.total_memory, 0x5A5A5A5A5A5A5A5Aull) << "a field the caller does not know";
  });
}

TEST(HostDriver, CopiesPastTheEndAreRefused) {
  for (const char* protect : {"0", "1"}) {
    InQueueModes({{"FLAGOS_HOST_PROTECT", protect}, {"FLAGOS_HOST_DEVICES", "2"}}, [protect] {
      flagos_stream_t stream = nullptr;
      ASSERT_EQ(D().stream_create(0, 0, 0, &stream), FLAGOS_OK);
      char* block = nullptr;
      char* far = nullptr;
      char* pinned = nullptr;
      ASSERT_EQ(D().memory_alloc(0, 1000, reinterpret_cast<void**>(&block)), FLAGOS_OK);
      ASSERT_EQ(D().memory_alloc(1, 1000, reinterpret_cast<void**>(&far)), FLAGOS_OK);
      ASSERT_EQ(D().host_alloc(1000, reinterpret_cast<void**>(&pinned)), FLAGOS_OK);
      char* view = View<char>(block);
      std::vector<char> host(4096);
      for (const flagos_stream_t on : {flagos_stream_t{nullptr}, stream}) {
        const auto refused = [&](void* dst, int dst_device, const void* src, int src_device, size_t size) {
          ExpectFails(D().copy(dst, dst_device, src, src_device, size, on), FLAGOS_INVALID_VALUE, "copy");
        };
        refused(block, 0, host.data(), FLAGOS_HOST, 1001);
        refused(block + 999, 0, host.data(), FLAGOS_HOST, 2);
        refused(host.data(), FLAGOS_HOST, block, 0, 1001);
        refused(block, 0, far, 1, 1001);
        refused(block, 0, pinned + 1, FLAGOS_HOST, 1000);
        refused(pinned + 999, FLAGOS_HOST, block, 0, 2);
        refused(far, 1, view + 1, FLAGOS_HOST, 1000);
        refused(host.data(), FLAGOS_HOST, block, 0, ~size_t{0});
        refused(block, 0, host.data(), FLAGOS_HOST, ~size_t{0});
        refused(block, 1, host.data(), FLAGOS_HOST, 8);  // another device's
        refused(host.data(), 0, block, 0, 8);            // host memory as device memory
        refused(block, 0, nullptr, FLAGOS_HOST, 8);
        refused(nullptr, 0, host.data(), FLAGOS_HOST, 8);
        refused(block, 0, block, 0, 8);
        refused(block + 7, 0, block, 0, 8);
        refused(host.data(), FLAGOS_HOST, host.data() + 64, FLAGOS_HOST, 8);
        ExpectFails(D().copy(block, 2, host.data(), FLAGOS_HOST, 8, on), FLAGOS_INVALID_DEVICE, "copy");
        ExpectFails(D().copy(block, 0, host.data(), -2, 8, on), FLAGOS_INVALID_DEVICE, "copy");
        ExpectFails(D().fill(block, 0, 1, 1001, on), FLAGOS_INVALID_VALUE, "fill");
        ExpectFails(D().fill(pinned, 0, 1, 8, on), FLAGOS_INVALID_VALUE, "fill");
        ExpectFails(D().fill(block, FLAGOS_HOST, 1, 8, on), FLAGOS_INVALID_DEVICE, "fill");
        if (std::strcmp(protect, "1") == 0) {
          refused(far, 1, block, FLAGOS_HOST, 8);
          refused(view, 0, host.data(), FLAGOS_HOST, 8);
        }
        EXPECT_EQ(D().copy(block + 8, 0, block, 0, 8, on), FLAGOS_OK) << "they touch";
        EXPECT_EQ(D().copy(block, 0, pinned, FLAGOS_HOST, 1000, on), FLAGOS_OK);
        ASSERT_EQ(D().device_sync(0), FLAGOS_OK);  // the host view is read as host memory, which nothing orders
        EXPECT_EQ(D().copy(far, 1, view, FLAGOS_HOST, 1000, nullptr), FLAGOS_OK);
      }
      // A stream of a device that takes no part.
      ExpectFails(D().copy(far, 1, host.data(), FLAGOS_HOST, 8, stream), FLAGOS_INVALID_VALUE, "copy");
      ExpectFails(D().fill(far, 1, 0, 8, stream), FLAGOS_INVALID_VALUE, "fill");
      EXPECT_EQ(D().copy(far, 1, block, 0, 8, stream), FLAGOS_OK);
    });
  }
}

TEST(HostDriver, FreesOfWrongPointersAreRefused) {
  InQueueModes({{"FLAGOS_HOST_DEVICES", "2"}}, [] {
    char* block = nullptr;
    char* pinned = nullptr;
    std::vector<char> host(4096);
    ASSERT_EQ(D().memory_alloc(0, 1000, reinterpret_cast<void**>(&block)), FLAGOS_OK);
    ASSERT_EQ(D().host_alloc(1000, reinterpret_cast<void**>(&pinned)), FLAGOS_OK);
    ASSERT_EQ(D().host_register(host.data(), 1000), FLAGOS_OK);
    for (void* pointer : {static_cast<void*>(block + 1), static_cast<void*>(pinned), static_cast<void*>(host.data())}) {
      ExpectFails(D().memory_free(0, pointer), FLAGOS_INVALID_VALUE, "memory_free");
    }
    ExpectFails(D().memory_free(1, block), FLAGOS_INVALID_VALUE, "memory_free");
    ExpectFails(D().memory_free(2, block), FLAGOS_INVALID_DEVICE, "memory_free");
    for (void* pointer : {static_cast<void*>(block), static_cast<void*>(pinned + 1), static_cast<void*>(host.data())}) {
      ExpectFails(D().host_free(pointer), FLAGOS_INVALID_VALUE, "host_free");
    }
    for (void* pointer : {static_cast<void*>(block), static_cast<void*>(pinned), static_cast<void*>(host.data() + 1)}) {
      ExpectFails(D().host_unregister(pointer), FLAGOS_INVALID_VALUE, "host_unregister");
    }
    // Registration: neither twice nor overlapping, and host memory only.
    ExpectFails(D().host_register(host.data() + 999, 2), FLAGOS_ALREADY, "host_register");
    ExpectFails(D().host_register(pinned + 10, 10), FLAGOS_ALREADY, "host_register");
    ExpectFails(D().host_register(block, 8), FLAGOS_INVALID_VALUE, "host_register");
    ExpectFails(D().host_register(nullptr, 8), FLAGOS_INVALID_VALUE, "host_register");
    EXPECT_EQ(D().host_register(host.data() + 1000, 10), FLAGOS_OK) << "they touch";
    ASSERT_EQ(D().host_unregister(host.data()), FLAGOS_OK);
    ExpectFails(D().host_register(host.data() + 990, 100), FLAGOS_ALREADY, "host_register");  // spans one
    ASSERT_EQ(D().memory_free(0, block), FLAGOS_OK);
    ExpectFails(D().memory_free(0, block), FLAGOS_INVALID_VALUE, "memory_free");
    ASSERT_EQ(D().host_free(pinned), FLAGOS_OK);
    ExpectFails(D().host_free(pinned), FLAGOS_INVALID_VALUE, "host_free");
  });
}

TEST(HostDriver, HandlesOfTheWrongKindOrDevice) {
  InQueueModes({{"FLAGOS_HOST_DEVICES", "2"}}, [] {
    flagos_stream_t stream = nullptr;
    flagos_event_t event = nullptr;
    flagos_event_t far = nullptr;
    ASSERT_EQ(D().stream_create(0, 0, 0, &stream), FLAGOS_OK);
    ASSERT_EQ(D().event_create(0, FLAGOS_EVENT_TIMING, &event), FLAGOS_OK);
    ASSERT_EQ(D().event_create(1, FLAGOS_EVENT_TIMING, &far), FLAGOS_OK);
    ExpectFails(D().stream_sync(reinterpret_cast<flagos_stream_t>(event)), FLAGOS_INVALID_HANDLE, "stream_sync");
    ExpectFails(D().event_sync(reinterpret_cast<flagos_event_t>(stream)), FLAGOS_INVALID_HANDLE, "event_sync");
    ExpectFails(D().event_record(far, stream), FLAGOS_INVALID_HANDLE, "event_record");
    ASSERT_EQ(D().event_record(event, stream), FLAGOS_OK);
    ASSERT_EQ(D().event_record(far, nullptr), FLAGOS_OK);
    float ms = 0;
    ExpectFails(D().event_elapsed(event, far, &ms), FLAGOS_INVALID_HANDLE, "event_elapsed");
    EXPECT_EQ(D().stream_wait(stream, far), FLAGOS_OK) << "waiting across devices is fine";
    ASSERT_EQ(D().event_destroy(event), FLAGOS_OK);
    for (const flagos_event_t bad : {event, flagos_event_t{nullptr}}) {
      ExpectFails(D().event_destroy(bad), FLAGOS_INVALID_HANDLE, "event_destroy");
      ExpectFails(D().event_record(bad, stream), FLAGOS_INVALID_HANDLE, "event_record");
      ExpectFails(D().event_sync(bad), FLAGOS_INVALID_HANDLE, "event_sync");
      ExpectFails(D().event_elapsed(bad, far, &ms), FLAGOS_INVALID_HANDLE, "event_elapsed");
      ExpectFails(D().stream_wait(stream, bad), FLAGOS_INVALID_HANDLE, "stream_wait");
    }
    ASSERT_EQ(D().stream_destroy(stream), FLAGOS_OK);
    ExpectFails(D().stream_wait(stream, far), FLAGOS_INVALID_HANDLE, "stream_wait");
    ExpectFails(D().stream_host_func(stream, [](void*) {}, nullptr), FLAGOS_INVALID_HANDLE, "stream_host_func");
    ExpectFails(D().event_record(far, stream), FLAGOS_INVALID_HANDLE, "event_record");
  });
}

TEST(NullDriver, IsHonest) {
  InChild({{"FLAGOS_DRIVER", "null"}}, [] {
    int32_t count = -1;
    EXPECT_EQ(D().device_count(&count), FLAGOS_OK);
    EXPECT_EQ(count, 0);
    void* block = nullptr;
    flagos_stream_t stream = nullptr;
    ExpectFails(D().memory_alloc(0, 8, &block), FLAGOS_INVALID_DEVICE, "memory_alloc");
    ExpectFails(D().stream_create(0, 0, 0, &stream), FLAGOS_INVALID_DEVICE, "stream_create");
    ExpectFails(D().stream_sync(nullptr), FLAGOS_INVALID_HANDLE, "stream_sync");
    ExpectFails(D().copy(&count, FLAGOS_HOST, &count, FLAGOS_HOST, 4, nullptr), FLAGOS_INVALID_VALUE, "copy");
  });
  InChild({{"FLAGOS_DRIVER", "null"}, {"FLAGOS_NULL_SIZE", "4"}}, [] {
    const std::string text = ErrorOf([] { D(); }, FLAGOS_INVALID_VALUE);
    EXPECT_NE(text.find("unknown option size=4"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace torch_fl::test
