// SPDX-License-Identifier: Apache-2.0
// The fault layer: the call asked for fails, and no other.
#include <thread>

#include "fake_driver.h"
#include "runtime/layers/entries.h"

namespace torch_fl::test {
namespace {

using runtime::layers::kStatusEntries;

// Every status entry of the table by index, called so that the fake driver's entry would be reached.
flagos_status_t CallEntry(const flagos_driver_v1_t& t, size_t index) {
  static flagos_device_info_t info;
  static flagos_pointer_info_t pointer;
  static flagos_access_fault_t fault;
  static const flagos_kernel_t kernel{sizeof kernel, "k", nullptr, 0};
  static void* p = nullptr;
  auto* stream = reinterpret_cast<flagos_stream_t>(0x10);
  auto* event = reinterpret_cast<flagos_event_t>(0x10);
  int64_t big[2];
  int32_t small[2];
  uint64_t bytes[2];
  ptrdiff_t offset = 0;
  size_t size = 0;
  float ms = 0;
  const std::vector<std::function<flagos_status_t()>> calls{
      [&] { return t.init(nullptr, 0); },
      [&] { return t.versions(&big[0], &big[1]); },
      [&] { return t.device_count(&small[0]); },
      [&] { return t.device_info(0, &info); },
      [&] { return t.device_memory(0, &bytes[0], &bytes[1]); },
      [&] { return t.device_sync(0); },
      [&] { return t.memory_alloc(0, 8, &p); },
      [&] { return t.memory_free(0, p); },
      [&] { return t.host_view_offset(0, &offset); },
      [&] { return t.host_alloc(8, &p); },
      [&] { return t.host_free(p); },
      [&] { return t.host_register(&size, 8); },
      [&] { return t.host_unregister(&size); },
      [&] { return t.pointer_info(p, &pointer); },
      [&] { return t.access_fault_take(&fault); },
      [&] { return t.copy(p, 0, p, 0, 8, stream); },
      [&] { return t.fill(p, 0, 0, 8, stream); },
      [&] { return t.stream_priority_range(0, &small[0], &small[1]); },
      [&] { return t.stream_create(0, 0, 0, &stream); },
      [&] { return t.stream_destroy(stream); },
      [&] { return t.stream_query(stream); },
      [&] { return t.stream_sync(stream); },
      [&] { return t.stream_wait(stream, event); },
      [&] { return t.stream_wrap(0, p, &stream); },
      [&] { return t.stream_host_func(stream, [](void*) {}, nullptr); },
      [&] { return t.event_create(0, 0, &event); },
      [&] { return t.event_destroy(event); },
      [&] { return t.event_record(event, stream); },
      [&] { return t.event_query(event); },
      [&] { return t.event_sync(event); },
      [&] { return t.event_elapsed(event, event, &ms); },
      [&] { return t.peer_can_access(0, 1, &small[0]); },
      [&] { return t.peer_enable(0, 1); },
      [&] { return t.kernel_begin(stream); },
      [&] { return t.kernel_end(stream, &kernel); },
      [&] { return t.memory_granularity(0, &size); },
      [&] { return t.memory_reserve(0, 8, &p); },
      [&] { return t.memory_release(0, p, 8); },
      [&] { return t.memory_map(0, p, 8); },
      [&] { return t.memory_unmap(0, p, 8); },
  };
  EXPECT_EQ(calls.size(), kStatusEntries.size());
  return calls[index]();
}

TEST(LayersFault, EveryEntryFailsAtTheCallAskedFor) {
  InChild({}, [] {
    const flagos_driver_v1_t& t = InLayers("fault", FullFake());
    for (size_t i = 0; i < kStatusEntries.size(); ++i) {
      const std::string name = kStatusEntries[i];
      SCOPED_TRACE(name);
      runtime::TakeCallCounts();
      runtime::ArmFault(name, 3, FLAGOS_DEVICE_LOST);
      const uint64_t fired = runtime::FaultsFired();
      for (int call = 1; call <= 5; ++call) {
        Fake().calls.clear();
        const flagos_status_t status = CallEntry(t, i);
        if (call != 3) {
          EXPECT_EQ(status, FLAGOS_OK) << "call " << call;
          EXPECT_EQ(Fake().calls, std::vector<std::string>{name});
          continue;
        }
        EXPECT_EQ(status, FLAGOS_DEVICE_LOST);
        EXPECT_TRUE(Fake().calls.empty()) << "the call reached the driver";
        EXPECT_EQ(Text(t), name + ": injected by the fault layer, call 3");
        EXPECT_EQ(t.last_error()->function, name);
        EXPECT_EQ(t.last_error()->status, FLAGOS_DEVICE_LOST);
      }
      EXPECT_EQ(runtime::FaultsFired(), fired + 1);
      EXPECT_EQ(runtime::TakeCallCounts(), (std::vector<std::pair<std::string, uint64_t>>{{name, 5}}));
    }
    EXPECT_TRUE(runtime::TakeCallCounts().empty());
  });
}

TEST(LayersFault, FromTheEnvironment) {
  InChild({{"FLAGOS_DRIVER_LAYERS", "fault:fill:2:OUT_OF_MEMORY:memory_alloc:1:DEVICE_LOST"}}, [] {
    ErrorOf([] { runtime::Allocate(0, 8); }, FLAGOS_DEVICE_LOST);
    void* block = runtime::Allocate(0, 8);
    runtime::Fill(block, 0, 0, 8);
    ErrorOf([&] { runtime::Fill(block, 0, 0, 8); }, FLAGOS_OUT_OF_MEMORY);
    EXPECT_EQ(runtime::FaultsFired(), 2u);
    runtime::Fill(block, 0, 0, 8);
    runtime::Free(block);
  });
}

TEST(LayersFault, ArmingAgainAndDisarming) {
  InChild({}, [] {
    const flagos_driver_v1_t& t = InLayers("fault");
    runtime::ArmFault("device_sync", 1, FLAGOS_DEVICE_LOST);
    runtime::ArmFault("device_sync", 2, FLAGOS_VENDOR_ERROR);
    EXPECT_EQ(t.device_sync(0), FLAGOS_OK);
    EXPECT_EQ(t.device_sync(0), FLAGOS_VENDOR_ERROR);
    runtime::ArmFault("device_sync", 1, FLAGOS_VENDOR_ERROR);
    runtime::ArmFault("device_sync", 0, FLAGOS_OK);
    EXPECT_EQ(t.device_sync(0), FLAGOS_OK);
    runtime::ArmFault("device_sync", 1, FLAGOS_VENDOR_ERROR);
    runtime::DisarmFaults();
    EXPECT_EQ(t.device_sync(0), FLAGOS_OK);
    EXPECT_NE(ErrorOf([] { runtime::ArmFault("copies", 1, FLAGOS_DEVICE_LOST); }, FLAGOS_INVALID_VALUE)
                  .find("unknown driver function 'copies'; known: init, versions"),
              std::string::npos);
    EXPECT_NE(ErrorOf([] { runtime::ArmFault("copy", 1, FLAGOS_OK); }, FLAGOS_INVALID_VALUE).find("one of: NOT_READY"),
              std::string::npos);
  });
}

TEST(LayersFault, OneOfManyThreadsMeetsIt) {
  InChild({}, [] {
    // The fake driver keeps a list of calls, so threads need one that does not.
    flagos_driver_v1_t quiet = FakeTable();
    quiet.device_sync = [](int32_t) { return FLAGOS_OK; };
    const flagos_driver_v1_t& t = InLayers("fault", quiet);
    runtime::ArmFault("device_sync", 100, FLAGOS_DEVICE_LOST);
    std::atomic<int> failed{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int call = 0; call < 100; ++call) failed += t.device_sync(0) == FLAGOS_DEVICE_LOST ? 1 : 0;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(failed.load(), 1);
    EXPECT_EQ(runtime::TakeCallCounts(), (std::vector<std::pair<std::string, uint64_t>>{{"device_sync", 400}}));
  });
}

}  // namespace
}  // namespace torch_fl::test
