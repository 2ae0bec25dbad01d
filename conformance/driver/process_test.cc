// SPDX-License-Identifier: Apache-2.0
// Fork, exit with work in flight, and what may be called before what. Each runs in a process of its own.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/options.h"
#include "runtime/runtime.h"
#include "suite.h"

namespace torch_fl::suite {
namespace {

// ---- Fork

// How many entries did not answer as wanted; says which on standard error.
class Tally {
 public:
  void Add(const char* entry, flagos_status_t got, flagos_status_t wanted) {
    if (got == wanted) return;
    std::fprintf(stderr, "child: %s gave %s, wanted %s\n", entry, StatusName(got).c_str(), StatusName(wanted).c_str());
    ++wrong_;
  }
  int wrong() const { return wrong_; }

 private:
  int wrong_ = 0;
};

int CountWrongInAChild(flagos_stream_t stream, flagos_event_t event, void* pointer) {
  constexpr flagos_status_t kGone = FLAGOS_NOT_INITIALIZED;
  Tally tally;
  int32_t number = 0;
  uint64_t bytes = 0;
  size_t size = 0;
  void* out = nullptr;
  uint8_t host[64] = {};
  flagos_device_info_t info{};
  info.struct_size = sizeof info;
  flagos_stream_t new_stream = nullptr;
  flagos_event_t new_event = nullptr;
  float ms = 0;
#define GONE(entry, ...) tally.Add(#entry, D().entry(__VA_ARGS__), kGone)
  GONE(device_count, &number);
  GONE(device_info, 0, &info);
  GONE(device_sync, 0);
  GONE(memory_alloc, 0, 64, &out);
  GONE(copy, pointer, 0, host, FLAGOS_HOST, sizeof host, nullptr);
  GONE(copy, host, FLAGOS_HOST, pointer, 0, sizeof host, stream);
  GONE(fill, pointer, 0, 1, 64, nullptr);
  GONE(stream_create, 0, FLAGOS_STREAM_DEFAULT, 0, &new_stream);
  GONE(stream_query, stream);
  GONE(stream_sync, stream);
  GONE(stream_wait, stream, event);
  GONE(event_create, 0, FLAGOS_EVENT_DEFAULT, &new_event);
  GONE(event_record, event, stream);
  GONE(event_query, event);
  GONE(event_sync, event);
  GONE(event_destroy, event);
  GONE(stream_destroy, stream);
  if (D().device_memory != nullptr) GONE(device_memory, 0, &bytes, &bytes);
  if (D().event_elapsed != nullptr) GONE(event_elapsed, event, event, &ms);
  if (D().host_alloc != nullptr) GONE(host_alloc, 64, &out);
  if (D().host_register != nullptr) GONE(host_register, host, sizeof host);
  if (D().stream_host_func != nullptr) GONE(stream_host_func, stream, [](void*) {}, nullptr);
  if (D().peer_can_access != nullptr) GONE(peer_can_access, 0, 0, &number);
  if (D().memory_granularity != nullptr) {
    GONE(memory_granularity, 0, &size);
    GONE(memory_reserve, 0, size_t{1} << 21, &out);
  }
#undef GONE
  tally.Add("memory_free", D().memory_free(0, pointer), FLAGOS_OK);
  tally.Add("memory_free of NULL", D().memory_free(0, nullptr), FLAGOS_OK);
  if (D().memory_free(0, pointer) != FLAGOS_OK) tally.Add("memory_free again", FLAGOS_INVALID_VALUE, FLAGOS_OK);
  return tally.wrong();
}

TEST(Fork, TheChildIsRefusedAndMayFree) {
  NEED_DEVICES(1);
  const Block block(0, 8192);
  const Stream stream(0);
  const Event event(0);
  block.Write(Pattern(8192, 1));
  event.Record(stream);
  stream.Sync();
  EXPECT_EQ(RunForked([&] { return CountWrongInAChild(stream.get(), event.get(), block.get()); }), 0);
  EXPECT_TRUE(Same(Pattern(8192, 1), block.Read())) << "the child's free is not the parent's";
  EXPECT_OK(D().event_query(event.get()));
  EXPECT_OK(D().fill(block.get(), 0, 1, 8192, stream.get()));
  stream.Sync();
}

TEST(Fork, TheChildsErrorNamesFork) {
  NEED_DEVICES(1);
  const Block block(0, 64);
  EXPECT_EQ(RunForked([] {
              if (D().device_sync(0) != FLAGOS_NOT_INITIALIZED) return 1;
              const flagos_error_t* error = D().last_error();
              if (error->status != FLAGOS_NOT_INITIALIZED) return 2;
              return std::strcmp(error->function, "device_sync") == 0 ? 0 : 3;
            }),
            0);
}

TEST(Fork, WithWorkPending) {
  NEED_GATES();
  const Block block(0, 1000);
  const Stream stream(0);
  const Event event(0);
  Gate gate(stream);
  ASSERT_OK(D().fill(block.get(), 0, 3, 1000, stream.get()));
  event.Record(stream);
  EXPECT_EQ(RunForked([&] { return CountWrongInAChild(stream.get(), event.get(), block.get()); }), 0);
  EXPECT_STATUS(FLAGOS_NOT_READY, D().stream_query(stream.get()));
  gate.Open();
  stream.Sync();
  EXPECT_TRUE(Same(Bytes(1000, 3), block.Read()));
}

TEST(Fork, WhileOtherThreadsWork) {
  NEED_DEVICES(1);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        const Stream stream(0);
        const Event event(0);
        const Block block(0, 4096);
        const Pinned pinned(100);
        Check(D().fill(block.get(), 0, 1, 4096, stream.get()), "fill");
        event.Record(stream);
        stream.Sync();
      }
    });
  }
  const Block block(0, 8192);
  const Stream stream(0);
  const Event event(0);
  // A lock that another thread holds at the fork is held for ever in the child.
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(RunForked([&] { return CountWrongInAChild(stream.get(), event.get(), block.get()); }), 0) << i;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(Fork, TheChildMayExitInTheUsualWay) {
  NEED_GATES();
  const Block block(0, 1000);
  const Stream stream(0);
  Gate gate(stream);
  ASSERT_OK(D().fill(block.get(), 0, 3, 1000, stream.get()));
  EXPECT_EQ(RunForked([]() -> int { std::exit(0); }), 0);
  gate.Open();
  stream.Sync();
  EXPECT_TRUE(Same(Bytes(1000, 3), block.Read()));
}

// ---- Exit

// Work that never ends. Reachable until the process is gone, so no leak checker minds.
void LeaveWorkInFlight() {
  static const auto* const stream = new Stream(0);
  static const auto* const waiting = new Stream(0);
  static const auto* const event = new Event(0);
  static const auto* const block = new Block(0, 1 << 20);
  static const auto* const pinned = new Pinned(1 << 20);
  static const auto* const gate = new Gate(*stream);
  static_cast<void>(gate);
  CopyIn(*block, pinned->get(), 1 << 20, stream->get());
  event->Record(*stream);
  waiting->Wait(event->get());
  CopyOut(pinned->get(), *block, 1 << 20, waiting->get());
}

SUITE_SCENARIO(ExitWithWorkInFlight) {
  LeaveWorkInFlight();
  return 0;
}

SUITE_SCENARIO(ExitFromAnotherThread) {
  LeaveWorkInFlight();
  std::thread([] { std::exit(0); }).join();
  return 1;
}

SUITE_SCENARIO(ExitWhileThreadsCall) {
  for (int i = 0; i < 4; ++i) {
    std::thread([] {
      for (;;) {
        void* pointer = nullptr;
        if (D().memory_alloc(0, 4096, &pointer) == FLAGOS_OK) D().memory_free(0, pointer);
      }
    }).detach();
  }
  const Block block(0, 4096);
  for (int i = 0; i < 100; ++i) Check(D().fill(block.get(), 0, 1, 4096, nullptr), "fill");
  return 0;
}

TEST(Exit, WithWorkInFlight) {
  NEED_GATES();
  EXPECT_EQ(RunScenario("ExitWithWorkInFlight"), 0);
}

TEST(Exit, FromAnotherThread) {
  NEED_GATES();
  EXPECT_EQ(RunScenario("ExitFromAnotherThread"), 0);
}

TEST(Exit, WhileThreadsCall) {
  NEED_DEVICES(1);
  EXPECT_EQ(RunScenario("ExitWhileThreadsCall"), 0);
}

// ---- Before init, and the first calls after it

const flagos_driver_v1_t* TableWithoutInit() {
  std::string path;
  if (const auto plugin = EnvString("FLAGOS_DRIVER_PLUGIN")) {
    path = *plugin;
  } else {
    path = runtime::DriverFolder() + "/libtorch_fl_driver_" + EnvString("FLAGOS_DRIVER").value_or("host") + ".so";
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(FLAGOS_LIBRARY_MISSING, dlerror());
  const auto entry = reinterpret_cast<flagos_driver_entry_t>(dlsym(library, FLAGOS_DRIVER_ENTRY_SYMBOL));
  const flagos_driver_v1_t* table = nullptr;
  if (entry == nullptr || entry(FLAGOS_DRIVER_ABI_VERSION, &table) != FLAGOS_OK) {
    throw Error(FLAGOS_SYMBOL_MISSING, path + ": no table");
  }
  return table;
}

SUITE_SCENARIO(BeforeInit) {
  const flagos_driver_v1_t& driver = *TableWithoutInit();
  if (driver.last_error() == nullptr || driver.last_error()->status != FLAGOS_OK) return 1;
  Tally tally;
  int32_t count = 0;
  void* pointer = nullptr;
  flagos_stream_t stream = nullptr;
  flagos_event_t event = nullptr;
  tally.Add("device_count", driver.device_count(&count), FLAGOS_NOT_INITIALIZED);
  tally.Add("device_sync", driver.device_sync(0), FLAGOS_NOT_INITIALIZED);
  tally.Add("memory_alloc", driver.memory_alloc(0, 64, &pointer), FLAGOS_NOT_INITIALIZED);
  tally.Add("stream_create", driver.stream_create(0, 0, 0, &stream), FLAGOS_NOT_INITIALIZED);
  tally.Add("event_create", driver.event_create(0, 0, &event), FLAGOS_NOT_INITIALIZED);
  if (driver.last_error()->status != FLAGOS_NOT_INITIALIZED) return 2;
  tally.Add("init", driver.init(nullptr, 0), FLAGOS_OK);
  tally.Add("device_count after init", driver.device_count(&count), FLAGOS_OK);
  return tally.wrong() == 0 ? 0 : 3;
}

SUITE_SCENARIO(UnknownOption) {
  const flagos_driver_v1_t& driver = *TableWithoutInit();
  const flagos_option_t option{"no_such_option", "1"};
  if (driver.init(&option, 1) != FLAGOS_INVALID_VALUE) return 1;
  return std::strstr(driver.last_error()->vendor_text, "no_such_option") != nullptr ? 0 : 2;
}

// Every query, of every device, before anything was made; then the device works.
SUITE_SCENARIO(QueriesFirst) {
  D().capabilities();
  for (int device = 0; device < DeviceCount(); ++device) {
    flagos_device_info_t info{};
    info.struct_size = sizeof info;
    Check(D().device_info(device, &info), "device_info");
    uint64_t free = 0;
    uint64_t total = 0;
    if (D().device_memory != nullptr) Check(D().device_memory(device, &free, &total), "device_memory");
    int32_t least = 0;
    int32_t greatest = 0;
    if (D().stream_priority_range != nullptr) {
      Check(D().stream_priority_range(device, &least, &greatest), "stream_priority_range");
    }
    int32_t can = 0;
    if (D().peer_can_access != nullptr) Check(D().peer_can_access(device, 0, &can), "peer_can_access");
  }
  flagos_pointer_info_t info{};
  info.struct_size = sizeof info;
  if (D().pointer_info != nullptr) Check(D().pointer_info(&info, &info), "pointer_info");
  const Block block(0, 100);
  block.Write(Pattern(100, 1));
  return Same(Pattern(100, 1), block.Read()) ? 0 : 1;
}

SUITE_SCENARIO(SyncFirst) {
  for (int device = DeviceCount() - 1; device >= 0; --device) Check(D().device_sync(device), "device_sync");
  const Event event(0);
  Check(D().event_sync(event.get()), "event_sync");
  return 0;
}

TEST(LifeCycle, BeforeInit) { EXPECT_EQ(RunScenario("BeforeInit"), 0); }

TEST(LifeCycle, AnUnknownOptionIsRefused) { EXPECT_EQ(RunScenario("UnknownOption"), 0); }

TEST(LifeCycle, QueriesFirst) {
  NEED_DEVICES(1);
  EXPECT_EQ(RunScenario("QueriesFirst"), 0);
}

TEST(LifeCycle, SyncFirst) {
  NEED_DEVICES(1);
  EXPECT_EQ(RunScenario("SyncFirst"), 0);
}

}  // namespace
}  // namespace torch_fl::suite
