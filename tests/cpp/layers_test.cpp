// SPDX-License-Identifier: Apache-2.0
// FLAGOS_DRIVER_LAYERS, and the layers trace, leak and delay.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "fake_driver.h"
#include "gate.h"
#include "runtime/layers/exit.h"

namespace torch_fl::test {
namespace {

// ---- FLAGOS_DRIVER_LAYERS

TEST(Layers, Words) {
  EXPECT_EQ(runtime::KnownLayers(), (std::vector<std::string>{"validate", "trace", "leak", "fault", "delay"}));
  EXPECT_TRUE(runtime::ParseLayers("").empty());
  const auto specs = runtime::ParseLayers("delay:seed=3:max_us=5,fault:copy:2:OUT_OF_MEMORY,validate");
  ASSERT_EQ(specs.size(), 3u);
  EXPECT_EQ(specs[0].name, "delay");
  EXPECT_EQ(specs[0].arguments, (std::vector<std::string>{"seed=3", "max_us=5"}));
  EXPECT_EQ(specs[1].arguments, (std::vector<std::string>{"copy", "2", "OUT_OF_MEMORY"}));
  EXPECT_EQ(specs[2].name, "validate");
}

TEST(Layers, WordsThatAreNotUnderstood) {
  const auto text = [](const std::string& layers) {
    return ErrorOf([&] { runtime::ParseLayers(layers); }, FLAGOS_INVALID_VALUE);
  };
  EXPECT_EQ(text("validate,speed"),
            "FLAGOS_DRIVER_LAYERS=validate,speed: unknown layer 'speed'; known: validate, trace, leak, fault, delay");
  EXPECT_EQ(text("validate,"),
            "FLAGOS_DRIVER_LAYERS=validate,: unknown layer ''; known: validate, trace, leak, fault, delay");
  EXPECT_EQ(text("leak,leak"), "FLAGOS_DRIVER_LAYERS=leak,leak: layer leak is named twice; a process has one of each");
  const auto refused = [&](const std::string& word, const std::string& argument, const std::string& use) {
    const std::string name = word.substr(0, word.find(':'));
    EXPECT_EQ(text(word).rfind(
                  "FLAGOS_DRIVER_LAYERS: layer " + name + " does not understand '" + argument + "'; use " + use, 0),
              0u)
        << text(word);
  };
  refused("validate:strict", "strict", "it without arguments");
  refused("leak:x", "x", "it without arguments");
  refused("delay:seed", "seed", "seed=N or max_us=N");
  refused("delay:seed=x", "seed=x", "a whole number from 0 to 18446744073709551615");
  refused("delay:max_us=10000001", "max_us=10000001", "a whole number from 0 to 10000000");
  refused("trace:out", "out", "file=PATH");
  refused("trace:file=", "file=", "file=PATH");
  refused("fault:copies:1:OUT_OF_MEMORY", "copies", "one of the entries: init, versions, device_count,");
  refused("fault:copy", "copy", "fault:ENTRY:NTH:STATUS, as in fault:copy:2:OUT_OF_MEMORY");
  refused("fault:copy:0:OUT_OF_MEMORY", "0", "a whole number from 1 to");
  refused("fault:copy:1:OK", "OK", "one of: NOT_READY, INVALID_VALUE,");
  refused("fault:copy:1:BROKEN", "BROKEN", "one of: NOT_READY, INVALID_VALUE,");
}

TEST(Layers, ControlsOfALayerThatIsNotOn) {
  InChild({}, [] {
    const auto off = [](const std::function<void()>& call) { return ErrorOf(call, FLAGOS_UNSUPPORTED); };
    EXPECT_EQ(off([] { runtime::ArmFault("copy", 1, FLAGOS_OUT_OF_MEMORY); }),
              "ArmFault: the driver layer fault is not on; add it to FLAGOS_DRIVER_LAYERS before the driver is loaded");
    off([] { runtime::DisarmFaults(); });
    off([] { runtime::FaultsFired(); });
    EXPECT_NE(off([] { runtime::LiveObjects(); }).find("layer leak is not on"), std::string::npos);
    EXPECT_NE(off([] { runtime::GetValidateCounts(); }).find("layer validate is not on"), std::string::npos);
    EXPECT_NE(off([] { runtime::TakeCallCounts(); }).find("layer fault or trace is not on"), std::string::npos);
  });
}

TEST(Layers, OnceAProcess) {
  InChild({}, [] {
    InLayers("leak");
    const flagos_driver_v1_t table = FakeTable();
    EXPECT_EQ(&runtime::WrapDriver(table, {}), &table) << "no layers, no wrapping";
    ErrorOf([&] { runtime::WrapDriver(table, runtime::ParseLayers("trace")); }, FLAGOS_UNSUPPORTED);
  });
}

TEST(Layers, WhatTheDriverLacksStaysAway) {
  for (const char* name : {"validate", "trace", "leak", "fault", "delay"}) {
    SCOPED_TRACE(name);
    InChild({}, [&] {
      flagos_driver_v1_t few = FakeTable();
      Fake().capabilities = 0;
      few.at_exit = nullptr;
      few.versions = nullptr;
      few.device_memory = nullptr;
      few.host_alloc = nullptr;
      few.host_free = nullptr;
      few.pointer_info = nullptr;
      few.stream_wrap = nullptr;
      few.stream_host_func = nullptr;
      few.event_elapsed = nullptr;
      few.memory_map = nullptr;
      const flagos_driver_v1_t& t = InLayers(name, few);
      EXPECT_EQ(t.versions, nullptr);
      EXPECT_EQ(t.device_memory, nullptr);
      EXPECT_EQ(t.host_alloc, nullptr);
      EXPECT_EQ(t.host_free, nullptr);
      EXPECT_EQ(t.pointer_info, nullptr);
      EXPECT_EQ(t.stream_wrap, nullptr);
      EXPECT_EQ(t.stream_host_func, nullptr);
      EXPECT_EQ(t.event_elapsed, nullptr);
      EXPECT_EQ(t.memory_map, nullptr);
      EXPECT_EQ(t.kernel_begin, nullptr);
      EXPECT_EQ(t.kernel_end, nullptr);
      EXPECT_EQ(t.fill(Block(t, 8), 0, 0, 8, NewStream(t)), FLAGOS_OK);
    });
  }
}

TEST(Layers, AllFiveInAnyOrder) {
  for (const char* layers : {"validate,trace:file=/dev/null,leak,fault,delay:max_us=20",
                             "delay:max_us=20,fault,leak,trace:file=/dev/null,validate",
                             "leak,validate,delay:max_us=20,trace:file=/dev/null,fault"}) {
    for (const char* queue : {"eager", "lazy"}) {
      SCOPED_TRACE(std::string(layers) + " " + queue);
      InChild({{"FLAGOS_DRIVER_LAYERS", layers}, {"FLAGOS_HOST_QUEUE", queue}}, [] {
        EXPECT_EQ(runtime::GetDriverInfo().layers.size(), 5u);
        EXPECT_NE(runtime::GetDriverInfo().capabilities & FLAGOS_CAP_KERNEL_ORDER, 0u);
        EXPECT_EQ(runtime::GetDriverInfo().name, "host");
        runtime::Event* event = runtime::CreateEvent(0, true, false);
        std::vector<unsigned char> host(5000, 9);
        auto* block = static_cast<unsigned char*>(runtime::Allocate(0, host.size()));
        runtime::Copy(block, 0, host.data(), FLAGOS_HOST, host.size(), true);
        runtime::KernelBegin(0);
        *View(block) = 10;
        const flagos_access_t access{block, 1, 1};
        runtime::KernelEnd(0, "test", &access, 1);
        runtime::RecordEvent(event, runtime::CurrentStream(0));
        runtime::Copy(host.data(), FLAGOS_HOST, block, 0, host.size(), false);
        EXPECT_EQ(host[0], 10);
        EXPECT_EQ(host[4999], 9);
        runtime::SynchronizeEvent(event);
        runtime::ArmFault("fill", 1, FLAGOS_VENDOR_ERROR);
        EXPECT_EQ(ErrorOf([&] { runtime::Fill(block, 0, 0, 8); }, FLAGOS_VENDOR_ERROR),
                  "flagos: fill on device 0 failed with VENDOR_ERROR: fill: injected by the fault layer, call 1");
        runtime::Fill(block, 0, 0, 8);
        runtime::DestroyEvent(event);
        runtime::Free(block);
        runtime::SynchronizeDevice(0);
        EXPECT_EQ(runtime::GetValidateCounts().misuses, 0u);
        EXPECT_EQ(runtime::GetValidateCounts().unordered, 0u);
        for (const auto& object : runtime::LiveObjects())
          EXPECT_TRUE(object.kind == "memory" || object.kind == "stream");
      });
    }
  }
}

// ---- trace

std::vector<std::string> Lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// The line without its times and thread.
std::string Stable(const std::string& line) {
  const size_t entry = line.find("\"entry\"");
  const size_t us = line.rfind(",\"us\":");
  EXPECT_EQ(line.rfind("{\"t_us\":", 0), 0u) << line;
  EXPECT_NE(line.find(",\"thread\":" + std::to_string(gettid()) + ","), std::string::npos) << line;
  EXPECT_EQ(line.back(), '}');
  return line.substr(entry, us - entry);
}

TEST(LayersTrace, OneLineACall) {
  const std::string path = testing::TempDir() + "/torch_fl_trace_" + std::to_string(getpid());
  std::filesystem::remove(path);
  InChild({}, [&] {
    const flagos_driver_v1_t& t = InLayers(("trace:file=" + path).c_str(), FullFake());
    void* block = Block(t, 64);
    flagos_stream_t stream = NewStream(t);
    Fake().next = FLAGOS_VENDOR_ERROR;
    EXPECT_EQ(t.memory_alloc(0, 64, &block), FLAGOS_VENDOR_ERROR);
    const flagos_access_t access{block, 8, 1};
    const flagos_kernel_t kernel{sizeof kernel, "a\"b\n", &access, 1};
    EXPECT_EQ(t.kernel_end(stream, &kernel), FLAGOS_OK);
    EXPECT_EQ(t.fill(block, 0, 3, 8, nullptr), FLAGOS_OK);
    const std::vector<std::string> lines = Lines(path);
    ASSERT_EQ(lines.size(), 5u);
    EXPECT_EQ(Stable(lines[0]), R"("entry":"memory_alloc","args":[0,64,"0x100000"],"status":"OK")");
    EXPECT_EQ(Stable(lines[1]), R"("entry":"stream_create","args":[0,0,0,"0x10"],"status":"OK")");
    EXPECT_EQ(Stable(lines[2]), R"("entry":"memory_alloc","args":[0,64,null],"status":"VENDOR_ERROR")");
    EXPECT_EQ(
        Stable(lines[3]),
        R"("entry":"kernel_end","args":["0x10",{"name":"a\"b\u000a","accesses":[["0x100000",8,"write"]]}],"status":"OK")");
    EXPECT_EQ(Stable(lines[4]), R"("entry":"fill","args":["0x100000",0,3,8,null],"status":"OK")");
    EXPECT_EQ(runtime::TakeCallCounts().size(), 4u) << "without the fault layer the trace layer counts";
  });
  std::filesystem::remove(path);
}

TEST(LayersTrace, ManyThreadsWriteWholeLines) {
  const std::string path = testing::TempDir() + "/torch_fl_trace_threads_" + std::to_string(getpid());
  std::filesystem::remove(path);
  InChild({{"FLAGOS_DRIVER_LAYERS", "trace:file=" + path}}, [] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([] {
        for (int call = 0; call < 100; ++call) runtime::DeviceInfo(0);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  size_t infos = 0;
  for (const std::string& line : Lines(path)) {
    EXPECT_EQ(line.rfind("{\"t_us\":", 0), 0u) << line;
    EXPECT_EQ(line.find("{", 1), std::string::npos) << line;
    EXPECT_EQ(line.back(), '}');
    infos += line.find("\"device_info\"") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(infos, 400u);
  std::filesystem::remove(path);
}

TEST(LayersTrace, AFileThatCannotBeWritten) {
  InChild({{"FLAGOS_DRIVER_LAYERS", "trace:file=/nonexistent/trace"}}, [] {
    EXPECT_EQ(ErrorOf([] { runtime::Driver(); }, FLAGOS_INVALID_VALUE),
              "FLAGOS_DRIVER_LAYERS: layer trace does not understand 'file=/nonexistent/trace'; use a file that can be "
              "written (No such file or directory)");
  });
}

// ---- leak

std::string Kinds() {
  std::string text;
  for (const auto& object : runtime::LiveObjects()) {
    text += (text.empty() ? "" : " ") + object.kind + "#" + std::to_string(object.number);
  }
  return text;
}

TEST(LayersLeak, ListsWhatLives) {
  InChild({}, [] {
    const flagos_driver_v1_t& t = InLayers("leak");
    EXPECT_EQ(Kinds(), "");
    void* block = Block(t, 64, 1);
    EXPECT_EQ(Block(t, 0), nullptr);
    void* pinned = nullptr;
    char mine[8];
    EXPECT_EQ(t.host_alloc(32, &pinned), FLAGOS_OK);
    EXPECT_EQ(t.host_register(mine, 8), FLAGOS_OK);
    flagos_stream_t stream = NewStream(t);
    flagos_stream_t wrapped = nullptr;
    EXPECT_EQ(t.stream_wrap(0, &pinned, &wrapped), FLAGOS_OK);
    flagos_event_t event = NewEvent(t);
    void* space = nullptr;
    EXPECT_EQ(t.memory_reserve(0, 0x4000, &space), FLAGOS_OK);
    EXPECT_EQ(t.memory_map(0, space, 0x1000), FLAGOS_OK);
    EXPECT_EQ(t.memory_map(0, At(space, 0x1000), 0x1000), FLAGOS_OK);
    EXPECT_EQ(Kinds(),
              "memory#1 host_memory#2 host_registration#3 stream#4 stream#5 event#6 reservation#7 mapping#8 mapping#9");
    const auto objects = runtime::LiveObjects();
    EXPECT_EQ(objects[0].handle, reinterpret_cast<uint64_t>(block));
    EXPECT_EQ(objects[0].size, 64u);
    EXPECT_EQ(objects[0].device, 1);
    EXPECT_EQ(objects[1].size, 32u);
    EXPECT_EQ(objects[1].device, -1);

    EXPECT_EQ(t.memory_free(0, block), FLAGOS_OK);  // another device's: the fake driver minds nothing
    Fake().next = FLAGOS_VENDOR_ERROR;
    EXPECT_EQ(t.stream_destroy(stream), FLAGOS_VENDOR_ERROR);
    EXPECT_EQ(runtime::LiveObjects().size(), 9u) << "what the driver did not take back lives";
    EXPECT_EQ(t.memory_unmap(0, space, 0x2000), FLAGOS_OK);
    EXPECT_EQ(t.memory_free(1, block), FLAGOS_OK);
    EXPECT_EQ(t.stream_destroy(stream), FLAGOS_OK);
    EXPECT_EQ(Kinds(), "host_memory#2 host_registration#3 stream#5 event#6 reservation#7");
    EXPECT_EQ(t.memory_release(0, space, 0x4000), FLAGOS_OK);
    EXPECT_EQ(t.host_free(pinned), FLAGOS_OK);
    EXPECT_EQ(t.host_unregister(mine), FLAGOS_OK);
    EXPECT_EQ(t.stream_destroy(wrapped), FLAGOS_OK);
    EXPECT_EQ(t.event_destroy(event), FLAGOS_OK);
    EXPECT_EQ(Kinds(), "");
    Fake().next = FLAGOS_OUT_OF_MEMORY;
    void* none = nullptr;
    EXPECT_EQ(t.memory_alloc(0, 64, &none), FLAGOS_OUT_OF_MEMORY);
    EXPECT_EQ(Kinds(), "");
  });
}

TEST(LayersLeak, AFailedFreeUnderTheFaultLayer) {
  for (const char* layers : {"leak,fault", "fault,leak"}) {
    InChild({}, [&] {
      const flagos_driver_v1_t& t = InLayers(layers);
      void* block = Block(t, 64);
      runtime::ArmFault("memory_free", 1, FLAGOS_VENDOR_ERROR);
      EXPECT_EQ(t.memory_free(0, block), FLAGOS_VENDOR_ERROR);
      EXPECT_EQ(Kinds(), "memory#1");
      EXPECT_EQ(t.memory_free(0, block), FLAGOS_OK);
      EXPECT_EQ(Kinds(), "");
    });
  }
}

// What the child writes to standard error.
std::string ErrorOutput(const Environment& environment, const std::function<void()>& body) {
  const std::string path = testing::TempDir() + "/torch_fl_stderr_" + std::to_string(getpid());
  InChild(environment, [&] {
    ASSERT_NE(std::freopen(path.c_str(), "w", stderr), nullptr);
    body();
  });
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  std::filesystem::remove(path);
  return text.str();
}

TEST(LayersLeak, ReportsAtExit) {
  const std::string text = ErrorOutput({{"FLAGOS_DRIVER_LAYERS", "leak"}}, [] {
    void* block = nullptr;
    EXPECT_EQ(runtime::Driver().memory_alloc(0, 3000, &block), FLAGOS_OK);
    NewEvent(runtime::Driver());
  });
  EXPECT_EQ(text.rfind("torch_fl: layer leak: 2 objects of 2.93 KiB were not given back to the driver\n"
                       "  memory #1 at 0x",
                       0),
            0u)
      << text;
  EXPECT_NE(text.find(", 3000 bytes, flagos:0\n  event #2 at 0x"), std::string::npos) << text;
}

TEST(LayersLeak, SaysNothingWhenClean) {
  // The pool's segments go back by themselves; the stream that the runtime keeps is given back by a hook.
  static flagos_stream_t stream = nullptr;
  EXPECT_EQ(ErrorOutput({{"FLAGOS_DRIVER_LAYERS", "leak"}},
                        [] {
                          runtime::Free(runtime::Allocate(0, 3000));
                          stream = NewStream(runtime::Driver());
                          runtime::AddBeforeExit([] { runtime::Driver().stream_destroy(stream); });
                          EXPECT_EQ(runtime::LiveObjects().size(), 2u);
                        }),
            "");
}

// ---- delay

TEST(LayersDelay, AKernelLeavesATokenBehind) {
  InChild({}, [] {
    const flagos_driver_v1_t& t = InLayers("delay:max_us=0");
    EXPECT_NE(t.capabilities() & FLAGOS_CAP_KERNEL_ORDER, 0u);
    flagos_stream_t stream = NewStream(t);
    Fake().calls.clear();
    EXPECT_EQ(RunKernel(t, stream, "k", {}), FLAGOS_OK);
    EXPECT_EQ(Fake().calls, (std::vector<std::string>{"stream_sync", "stream_host_func"}));
  });
}

TEST(LayersDelay, AnEventBehindAKernelIsPending) {
  InChild({{"FLAGOS_DRIVER_LAYERS", "delay:max_us=10000000:seed=5"}}, [] {
    // The first wait that this seed draws is seconds long; the child ends without it.
    runtime::Event* event = runtime::CreateEvent(0, false, false);
    void* block = runtime::Allocate(0, 8);
    const flagos_access_t access{block, 8, 1};
    runtime::KernelBegin(0);
    runtime::KernelEnd(0, "test", &access, 1);
    runtime::RecordEvent(event, runtime::CurrentStream(0));
    EXPECT_FALSE(runtime::QueryEvent(event));
    EXPECT_FALSE(runtime::QueryStream(runtime::CurrentStream(0)));
    runtime::DestroyEvent(event);
  });
}

TEST(LayersDelay, WorkIsPrecededByASleepOfTheSeed) {
  const auto sleeps = [](const char* layers) {
    std::vector<uintptr_t> drawn;
    const std::string path = testing::TempDir() + "/torch_fl_delay_" + std::to_string(getpid());
    InChild({}, [&] {
      const flagos_driver_v1_t& t = InLayers(layers);
      flagos_stream_t stream = NewStream(t);
      void* block = Block(t, 64);
      Fake().calls.clear();
      for (int i = 0; i < 20; ++i) EXPECT_EQ(t.fill(block, 0, 0, 8, stream), FLAGOS_OK);
      EXPECT_EQ(t.copy(block, 0, &path, FLAGOS_HOST, 8, stream), FLAGOS_OK);
      EXPECT_EQ(t.stream_host_func(stream, [](void*) {}, nullptr), FLAGOS_OK);
      EXPECT_EQ(Fake().calls[0], "stream_host_func");
      EXPECT_EQ(Fake().calls[1], "fill");
      EXPECT_EQ(Fake().calls[40], "stream_host_func");
      EXPECT_EQ(Fake().calls[41], "copy");
      ASSERT_EQ(Fake().host_functions.size(), 23u);
      const size_t before = Fake().calls.size();
      EXPECT_EQ(t.fill(block, 0, 0, 8, nullptr), FLAGOS_OK);
      EXPECT_EQ(Fake().calls.size(), before + 1) << "a synchronous call is not delayed";
      std::ofstream out(path);
      for (int i = 0; i < 20; ++i) {
        out << reinterpret_cast<uintptr_t>(Fake().host_functions[static_cast<size_t>(i)].second) << "\n";
      }
    });
    for (const std::string& line : Lines(path)) drawn.push_back(std::stoull(line));
    std::filesystem::remove(path);
    return drawn;
  };
  const auto first = sleeps("delay:seed=7:max_us=50");
  ASSERT_EQ(first.size(), 20u);
  EXPECT_EQ(sleeps("delay:seed=7:max_us=50"), first) << "the same seed, the same waits";
  EXPECT_NE(sleeps("delay:seed=8:max_us=50"), first);
  EXPECT_NE(sleeps("delay"), first);
  EXPECT_LE(*std::max_element(first.begin(), first.end()), 50u);
  EXPECT_GT(*std::max_element(first.begin(), first.end()), *std::min_element(first.begin(), first.end()));
}

TEST(LayersDelay, ADriverWithoutHostFunctions) {
  const std::string text = ErrorOutput({}, [] {
    flagos_driver_v1_t few = FakeTable();
    few.stream_host_func = nullptr;
    const flagos_driver_v1_t& t = InLayers("delay", few);
    EXPECT_EQ(t.capabilities() & FLAGOS_CAP_KERNEL_ORDER, 0u);
    EXPECT_EQ(t.fill(Block(t, 8), 0, 0, 8, NewStream(t)), FLAGOS_OK);
  });
  EXPECT_EQ(text, "torch_fl: layer delay: driver fake has no stream_host_func; nothing is delayed\n");
}

}  // namespace
}  // namespace torch_fl::test
