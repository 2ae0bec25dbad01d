// SPDX-License-Identifier: Apache-2.0
// The validate layer and misuse: each is refused with a text, before the driver sees it.
#include "fake_driver.h"

namespace torch_fl::test {
namespace {

constexpr size_t kSize = 4096;

std::string Hex(const void* pointer) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%zx", reinterpret_cast<size_t>(pointer));
  return text;
}

struct Bench {
  const flagos_driver_v1_t& t = InLayers("validate");
  void* block = Block(t, kSize);
  void* far = Block(t, kSize, 1);
  flagos_stream_t stream = NewStream(t);
  uint64_t misuses = 0;

  // The call returned `actual`; it must be `expected`, with the text, and the driver must not have seen it.
  void ExpectRefused(flagos_status_t actual, flagos_status_t expected, const std::string& text) {
    EXPECT_EQ(actual, expected);
    EXPECT_EQ(Text(t), "validate: " + text);
    EXPECT_EQ(t.last_error()->status, expected);
    EXPECT_EQ(std::string(t.last_error()->function), text.substr(0, text.find(':')));
    EXPECT_EQ(Fake().calls, calls) << "the driver saw the call";
    EXPECT_EQ(runtime::GetValidateCounts().misuses, ++misuses);
  }
  void Mark() { calls = Fake().calls; }
  std::vector<std::string> calls;
};

#define REFUSED(call, status, text) \
  s.Mark();                         \
  s.ExpectRefused(call, status, text)

TEST(LayersValidate, Streams) {
  InChild({}, [] {
    Bench s;
    auto* foreign = reinterpret_cast<flagos_stream_t>(0x777);
    const std::string dead = "the stream 0x777 is not live: destroyed before, or never made";
    flagos_event_t event = NewEvent(s.t);
    REFUSED(s.t.stream_sync(foreign), FLAGOS_INVALID_HANDLE, "stream_sync: " + dead);
    REFUSED(s.t.stream_query(foreign), FLAGOS_INVALID_HANDLE, "stream_query: " + dead);
    REFUSED(s.t.stream_destroy(foreign), FLAGOS_INVALID_HANDLE, "stream_destroy: " + dead);
    REFUSED(s.t.stream_wait(foreign, event), FLAGOS_INVALID_HANDLE, "stream_wait: " + dead);
    REFUSED(s.t.event_record(event, foreign), FLAGOS_INVALID_HANDLE, "event_record: " + dead);
    REFUSED(s.t.fill(s.block, 0, 0, 8, foreign), FLAGOS_INVALID_HANDLE, "fill: " + dead);
    REFUSED(s.t.copy(s.block, 0, &s, FLAGOS_HOST, 8, foreign), FLAGOS_INVALID_HANDLE, "copy: " + dead);
    REFUSED(s.t.kernel_begin(foreign), FLAGOS_INVALID_HANDLE, "kernel_begin: " + dead);
    REFUSED(s.t.kernel_end(foreign, nullptr), FLAGOS_INVALID_HANDLE, "kernel_end: " + dead);
    REFUSED(s.t.stream_host_func(foreign, [](void*) {}, nullptr), FLAGOS_INVALID_HANDLE, "stream_host_func: " + dead);
    REFUSED(s.t.stream_host_func(s.stream, nullptr, nullptr), FLAGOS_INVALID_VALUE,
            "stream_host_func: the function is NULL");
    REFUSED(s.t.stream_sync(nullptr), FLAGOS_INVALID_HANDLE, "stream_sync: the stream is NULL");
    REFUSED(s.t.kernel_end(s.stream, nullptr), FLAGOS_INVALID_VALUE,
            "kernel_end: the kernel, its name or its accesses are NULL");
    EXPECT_EQ(s.t.stream_destroy(s.stream), FLAGOS_OK);
    REFUSED(s.t.stream_destroy(s.stream), FLAGOS_INVALID_HANDLE,
            "stream_destroy: the stream " + Hex(s.stream) + " is not live: destroyed before, or never made");
  });
}

TEST(LayersValidate, AStreamThatTheDriverKeepsStaysLive) {
  InChild({}, [] {
    Bench s;
    Fake().next = FLAGOS_VENDOR_ERROR;
    EXPECT_EQ(s.t.stream_destroy(s.stream), FLAGOS_VENDOR_ERROR);
    EXPECT_EQ(Text(s.t), "the fake driver failed");
    EXPECT_EQ(s.t.stream_sync(s.stream), FLAGOS_OK);
    flagos_event_t event = NewEvent(s.t);
    Fake().next = FLAGOS_VENDOR_ERROR;
    EXPECT_EQ(s.t.event_destroy(event), FLAGOS_VENDOR_ERROR);
    EXPECT_EQ(s.t.event_sync(event), FLAGOS_OK);
  });
}

TEST(LayersValidate, Events) {
  InChild({}, [] {
    Bench s;
    auto* foreign = reinterpret_cast<flagos_event_t>(0x777);
    const std::string dead = "the event 0x777 is not live: destroyed before, or never made";
    flagos_event_t plain = NewEvent(s.t);
    flagos_event_t timed = NewEvent(s.t, 0, FLAGOS_EVENT_TIMING);
    flagos_event_t other = NewEvent(s.t, 1);
    float ms = 0;
    REFUSED(s.t.event_record(foreign, s.stream), FLAGOS_INVALID_HANDLE, "event_record: " + dead);
    REFUSED(s.t.event_query(foreign), FLAGOS_INVALID_HANDLE, "event_query: " + dead);
    REFUSED(s.t.event_sync(foreign), FLAGOS_INVALID_HANDLE, "event_sync: " + dead);
    REFUSED(s.t.event_destroy(foreign), FLAGOS_INVALID_HANDLE, "event_destroy: " + dead);
    REFUSED(s.t.stream_wait(s.stream, foreign), FLAGOS_INVALID_HANDLE, "stream_wait: " + dead);
    REFUSED(s.t.event_elapsed(timed, foreign, &ms), FLAGOS_INVALID_HANDLE,
            "event_elapsed: the start event " + Hex(timed) + " was never recorded");
    EXPECT_EQ(s.t.event_record(timed, s.stream), FLAGOS_OK);
    REFUSED(s.t.event_elapsed(timed, foreign, &ms), FLAGOS_INVALID_HANDLE, "event_elapsed: " + dead);
    REFUSED(s.t.event_elapsed(timed, plain, &ms), FLAGOS_INVALID_HANDLE,
            "event_elapsed: the end event " + Hex(plain) + " was made without FLAGOS_EVENT_TIMING");
    REFUSED(s.t.event_record(other, s.stream), FLAGOS_INVALID_HANDLE,
            "event_record: an event of flagos:1 cannot be recorded on stream 1 of flagos:0");
    EXPECT_EQ(s.t.event_elapsed(timed, timed, &ms), FLAGOS_OK);
    EXPECT_EQ(s.t.event_destroy(plain), FLAGOS_OK);
    REFUSED(s.t.event_sync(plain), FLAGOS_INVALID_HANDLE,
            "event_sync: the event " + Hex(plain) + " is not live: destroyed before, or never made");
  });
}

TEST(LayersValidate, Blocks) {
  InChild({}, [] {
    Bench s;
    const std::string base = Hex(s.block);
    EXPECT_EQ(s.t.memory_free(0, nullptr), FLAGOS_OK);
    REFUSED(s.t.memory_free(0, At(s.block, 16)), FLAGOS_INVALID_VALUE,
            "memory_free: " + Hex(At(s.block, 16)) + " is not the start of a live block of memory_alloc: it lies 16 " +
                "bytes inside the block " + base + " of 4096 bytes (flagos:0)");
    REFUSED(s.t.memory_free(1, s.block), FLAGOS_INVALID_VALUE,
            "memory_free: " + base +
                " is not the start of a live block of memory_alloc: freed before, or never handed out (flagos:1)");
    EXPECT_EQ(s.t.memory_free(0, s.block), FLAGOS_OK);
    REFUSED(s.t.memory_free(0, s.block), FLAGOS_INVALID_VALUE,
            "memory_free: " + base +
                " is not the start of a live block of memory_alloc: freed before, or never handed out (flagos:0)");
    REFUSED(s.t.fill(s.block, 0, 0, 8, s.stream), FLAGOS_INVALID_VALUE,
            "fill: the destination " + base + " +8 bytes is not inside one live block of flagos:0 (no live block is " +
                "there: freed before, never allocated, or host memory)");
    REFUSED(RunKernel(s.t, nullptr, "x", {}), FLAGOS_INVALID_HANDLE, "kernel_begin: the stream is NULL");
    EXPECT_EQ(s.t.kernel_begin(s.stream), FLAGOS_OK);
    const flagos_access_t access{s.block, 8, 1};
    const flagos_kernel_t kernel{sizeof kernel, "aten::add_", &access, 1};
    REFUSED(s.t.kernel_end(s.stream, &kernel), FLAGOS_INVALID_VALUE,
            "kernel_end: write by aten::add_: " + base +
                " +8 bytes is not inside one live block of flagos:0 (no live " +
                "block is there: freed before, never allocated, or host memory)");
  });
}

TEST(LayersValidate, AFaultOfTheDriver) {
  InChild({}, [] {
    Bench s;
    Fake().next_address = reinterpret_cast<uintptr_t>(s.block) + 8;
    void* out = nullptr;
    EXPECT_EQ(s.t.memory_alloc(0, 64, &out), FLAGOS_INVALID_VALUE);
    EXPECT_NE(Text(s.t).find("a fault of the driver: it handed out"), std::string::npos) << Text(s.t);
  });
}

TEST(LayersValidate, Copies) {
  InChild({}, [] {
    Bench s;
    char host[64];
    const std::string base = Hex(s.block);
    const std::string far = Hex(s.far);
    flagos_stream_t other = NewStream(s.t, 1);
    REFUSED(s.t.copy(host, FLAGOS_HOST, host + 8, FLAGOS_HOST, 8, nullptr), FLAGOS_INVALID_VALUE,
            "copy: neither side is a device");
    REFUSED(s.t.copy(s.block, 0, host, FLAGOS_HOST, 8, other), FLAGOS_INVALID_VALUE,
            "copy: stream 2 belongs to flagos:1, which takes no part in the copy");
    REFUSED(s.t.copy(nullptr, 0, host, FLAGOS_HOST, 8, nullptr), FLAGOS_INVALID_VALUE, "copy: the destination is NULL");
    REFUSED(s.t.copy(s.block, 0, nullptr, FLAGOS_HOST, 8, nullptr), FLAGOS_INVALID_VALUE, "copy: the source is NULL");
    REFUSED(s.t.copy(s.block, 0, host, FLAGOS_HOST, kSize + 1, nullptr), FLAGOS_INVALID_VALUE,
            "copy: the destination " + base + " +4097 bytes is not inside one live block of flagos:0 (it begins 0 " +
                "bytes into the block " + base + " of 4096 bytes)");
    // The wrong kind of copy, and the two sides taken for each other.
    REFUSED(s.t.copy(host, FLAGOS_HOST, s.block, FLAGOS_HOST, 8, nullptr), FLAGOS_INVALID_VALUE,
            "copy: neither side is a device");
    REFUSED(s.t.copy(s.block, FLAGOS_HOST, s.far, 1, 8, nullptr), FLAGOS_INVALID_VALUE,
            "copy: the destination " + base + " is passed as host memory but belongs to flagos:0");
    REFUSED(
        s.t.copy(s.far, 0, s.block, 0, 8, nullptr), FLAGOS_INVALID_VALUE,
        "copy: the destination " + far + " +8 bytes is not inside one live block of flagos:0 (it belongs to flagos:1)");
    REFUSED(s.t.copy(host, 0, s.block, FLAGOS_HOST, 8, nullptr), FLAGOS_INVALID_VALUE,
            "copy: the destination " + Hex(host) +
                " +8 bytes is not inside one live block of flagos:0 (no live block " +
                "is there: freed before, never allocated, or host memory)");
    REFUSED(s.t.copy(At(s.block, 4), 0, s.block, 0, 8, nullptr), FLAGOS_INVALID_VALUE,
            "copy: the destination " + Hex(At(s.block, 4)) + " and the source " + base + " overlap within 8 bytes");
    REFUSED(s.t.fill(s.far, 1, 0, 8, s.stream), FLAGOS_INVALID_VALUE,
            "fill: stream 1 belongs to flagos:0, not to flagos:1");

    // Right ones, and those of nothing.
    EXPECT_EQ(s.t.copy(At(s.block, 8), 0, s.block, 0, 8, nullptr), FLAGOS_OK);
    EXPECT_EQ(s.t.copy(s.far, 1, s.block, 0, kSize, s.stream), FLAGOS_OK);
    EXPECT_EQ(s.t.copy(host, FLAGOS_HOST, s.block, 0, sizeof host, s.stream), FLAGOS_OK);
    EXPECT_EQ(s.t.copy(nullptr, 0, nullptr, FLAGOS_HOST, 0, s.stream), FLAGOS_OK);
    EXPECT_EQ(s.t.fill(nullptr, 0, 0, 0, nullptr), FLAGOS_OK);
    EXPECT_EQ(runtime::GetValidateCounts().misuses, s.misuses);
  });
}

TEST(LayersValidate, PageLockedMemory) {
  InChild({}, [] {
    Bench s;
    void* pinned = nullptr;
    ASSERT_EQ(s.t.host_alloc(kSize, &pinned), FLAGOS_OK);
    EXPECT_EQ(s.t.host_free(nullptr), FLAGOS_OK);
    REFUSED(s.t.host_free(At(pinned, 8)), FLAGOS_INVALID_VALUE,
            "host_free: " + Hex(At(pinned, 8)) + " is not the start of a live block of host_alloc: it lies 8 bytes " +
                "inside the block " + Hex(pinned) + " of 4096 bytes");
    REFUSED(s.t.host_unregister(pinned), FLAGOS_INVALID_VALUE,
            "host_unregister: " + Hex(pinned) +
                " is not the start of a live block of host_register: freed before, or never handed out");
    REFUSED(s.t.memory_free(0, pinned), FLAGOS_INVALID_VALUE,
            "memory_free: " + Hex(pinned) +
                " is not the start of a live block of memory_alloc: freed before, or never handed out (flagos:0)");
    REFUSED(s.t.copy(pinned, 0, s.block, 0, 8, nullptr), FLAGOS_INVALID_VALUE,
            "copy: the destination " + Hex(pinned) +
                " +8 bytes is not inside one live block of flagos:0 (it is page-locked host memory)");
    EXPECT_EQ(s.t.host_free(pinned), FLAGOS_OK);
    REFUSED(s.t.host_free(pinned), FLAGOS_INVALID_VALUE,
            "host_free: " + Hex(pinned) +
                " is not the start of a live block of host_alloc: freed before, or never handed out");
  });
}

TEST(LayersValidate, AddressSpace) {
  InChild({}, [] {
    Bench s;
    constexpr size_t kPage = 0x1000;  // the fake driver's granularity
    void* space = nullptr;
    ASSERT_EQ(s.t.memory_reserve(0, 8 * kPage, &space), FLAGOS_OK);
    const auto refused = [&](flagos_status_t status, const char* why) {
      EXPECT_EQ(status, FLAGOS_INVALID_VALUE);
      EXPECT_NE(Text(s.t).find(why), std::string::npos) << Text(s.t);
      EXPECT_EQ(runtime::GetValidateCounts().misuses, ++s.misuses);
    };
    void* odd = nullptr;
    refused(s.t.memory_reserve(0, 100, &odd), "is not a multiple of memory_granularity, 4096");
    refused(s.t.memory_map(0, At(space, 8), kPage), "is not a multiple of memory_granularity, 4096");
    refused(s.t.memory_map(0, At(space, 4 * kPage), 8 * kPage), "is not inside one live reservation of flagos:0");
    refused(s.t.memory_map(1, space, kPage), "is not inside one live reservation of flagos:1");
    refused(s.t.fill(space, 0, 0, 8, s.stream), "is not inside one live block");
    EXPECT_EQ(s.t.memory_map(0, space, kPage), FLAGOS_OK);
    EXPECT_EQ(s.t.memory_map(0, At(space, kPage), 2 * kPage), FLAGOS_OK);
    EXPECT_EQ(s.t.memory_map(0, At(space, 4 * kPage), kPage), FLAGOS_OK);
    refused(s.t.memory_map(0, At(space, 2 * kPage), kPage), "has memory mapped in it already");
    EXPECT_EQ(s.t.fill(space, 0, 0, 3 * kPage, s.stream), FLAGOS_OK) << "mappings that touch count as one";
    refused(s.t.fill(space, 0, 0, 3 * kPage + 1, s.stream), "is not inside one live block");
    refused(s.t.memory_free(0, space), "is not the start of a live block of memory_alloc");
    refused(s.t.memory_unmap(0, At(space, kPage), kPage), "is not made of whole live mappings");
    refused(s.t.memory_unmap(0, At(space, kPage), 4 * kPage), "is not made of whole live mappings");
    refused(s.t.memory_release(0, space, 8 * kPage), "still has memory mapped in it; unmap it first");
    refused(s.t.memory_release(0, space, kPage), "is not a whole live reservation");

    Fake().next = FLAGOS_VENDOR_ERROR;
    EXPECT_EQ(s.t.memory_granularity(0, &s.misuses), FLAGOS_VENDOR_ERROR);
    s.misuses = runtime::GetValidateCounts().misuses;
    EXPECT_EQ(s.t.memory_unmap(0, space, 3 * kPage), FLAGOS_OK) << "two whole mappings";
    refused(s.t.fill(space, 0, 0, 8, s.stream), "is not inside one live block");
    EXPECT_EQ(s.t.memory_map(0, space, kPage), FLAGOS_OK);
    EXPECT_EQ(s.t.fill(space, 0, 0, 8, NewStream(s.t)), FLAGOS_OK) << "fresh memory has no history";
    EXPECT_EQ(s.t.memory_unmap(0, space, kPage), FLAGOS_OK);
    EXPECT_EQ(s.t.memory_unmap(0, At(space, 4 * kPage), kPage), FLAGOS_OK);
    EXPECT_EQ(s.t.memory_release(0, space, 8 * kPage), FLAGOS_OK);
    refused(s.t.memory_map(0, space, kPage), "is not inside one live reservation");
  });
}

TEST(LayersValidate, HostFunctionsMayNotCallTheDriver) {
  InChild({}, [] {
    Bench s;
    static const flagos_driver_v1_t* table = nullptr;
    static void* block = nullptr;
    static flagos_status_t inside = FLAGOS_OK;
    table = &s.t;
    block = s.block;
    const auto function = [](void*) { inside = table->fill(block, 0, 0, 8, nullptr); };
    ASSERT_EQ(s.t.stream_host_func(s.stream, function, nullptr), FLAGOS_OK);
    ASSERT_EQ(Fake().host_functions.size(), 1u);
    s.Mark();
    Fake().host_functions.front().first(Fake().host_functions.front().second);
    s.ExpectRefused(inside, FLAGOS_INVALID_VALUE, "fill: called by a host function, which may not call the driver");
    EXPECT_EQ(s.t.fill(s.block, 0, 0, 8, nullptr), FLAGOS_OK);
  });
}

TEST(LayersValidate, WithoutUnifiedAddressesTheSameAddressMayBeTwoThings) {
  InChild({}, [] {
    Fake().capabilities = FLAGOS_CAP_ASYNC;
    const flagos_driver_v1_t& t = InLayers("validate");
    EXPECT_EQ(t.kernel_begin, nullptr) << "no host view: no kernels in place";
    EXPECT_EQ(t.capabilities(), uint64_t{FLAGOS_CAP_ASYNC});
    void* block = Block(t, 64);
    Fake().next_address = reinterpret_cast<uintptr_t>(block);
    EXPECT_EQ(Block(t, 64, 1), block);
    EXPECT_EQ(t.copy(block, 0, block, 1, 64, nullptr), FLAGOS_OK);
    EXPECT_EQ(t.copy(block, FLAGOS_HOST, block, 1, 64, nullptr), FLAGOS_OK);
  });
}

TEST(LayersValidate, TheMostRecentFailureOfTheThreadIsTheLastError) {
  InChild({}, [] {
    Bench s;
    EXPECT_EQ(s.t.last_error()->status, FLAGOS_OK);
    EXPECT_EQ(s.t.stream_sync(nullptr), FLAGOS_INVALID_HANDLE);
    EXPECT_EQ(s.t.last_error()->status, FLAGOS_INVALID_HANDLE);
    Fake().next = FLAGOS_VENDOR_ERROR;
    EXPECT_EQ(s.t.fill(s.block, 0, 0, 8, nullptr), FLAGOS_VENDOR_ERROR);
    EXPECT_EQ(s.t.last_error()->status, FLAGOS_VENDOR_ERROR);
    EXPECT_EQ(s.t.last_error()->vendor_code, 7);
    Fake().query = FLAGOS_NOT_READY;
    EXPECT_EQ(s.t.stream_query(s.stream), FLAGOS_NOT_READY);
    EXPECT_EQ(s.t.last_error()->status, FLAGOS_VENDOR_ERROR) << "NOT_READY is no error";
    EXPECT_EQ(s.t.stream_sync(nullptr), FLAGOS_INVALID_HANDLE);
    EXPECT_EQ(s.t.last_error()->status, FLAGOS_INVALID_HANDLE);
  });
}

}  // namespace
}  // namespace torch_fl::test
