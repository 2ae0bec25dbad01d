// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "child.h"
#include "gate.h"
#include "runtime/allocator.h"

namespace torch_fl::test {
namespace {

// Runs `body` in a forked child of the calling process; fails when an expectation fails there.
void Forked(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a child that waits for a lock nobody holds must not hang the suite
    body();
    std::exit(testing::Test::HasFailure() ? kExpectationFailed : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Fork, ChildMayOnlyFree) {
  for (const char* protect : {"0", "1"}) {
    InChild({{"FLAGOS_HOST_POISON", "1"}, {"FLAGOS_HOST_PROTECT", protect}}, [] {
      void* block = runtime::Allocate(0, 1u << 20);
      void* large = runtime::Allocate(0, 8u << 20);
      runtime::Event* event = runtime::CreateEvent(0, false, false);
      runtime::Stream* stream = runtime::CurrentStream(0);
      runtime::Fill(block, 0, 42, 1u << 20);
      runtime::Fill(large, 0, 43, 8u << 20);
      runtime::SynchronizeDevice(0);
      const ptrdiff_t offset = runtime::HostViewOffset(0);
      Gate gate(stream);  // a worker is busy while we fork
      runtime::RecordEvent(event, stream);

      Forked([&] {
        const auto refuse = [](const char* call, const std::function<void()>& body) {
          EXPECT_EQ(ErrorOf(body, FLAGOS_NOT_INITIALIZED),
                    std::string(call) +
                        ": cannot use flagos in a forked subprocess, because the parent had initialised it. To use "
                        "flagos with multiprocessing, choose the 'spawn' start method");
        };
        EXPECT_TRUE(runtime::Owns(block, nullptr));
        runtime::AllocationInfo info;
        EXPECT_FALSE(runtime::FindAllocation(block, &info));
        runtime::Free(block);
        runtime::Free(large);
        EXPECT_TRUE(runtime::Owns(block, nullptr)) << "a free does nothing at all";
        runtime::DestroyEvent(event);
        EXPECT_EQ(runtime::CurrentDevice(), 0);
        EXPECT_EQ(runtime::DeviceCount(), 1);
        refuse("aten::add", [] { runtime::CheckAttention("aten::add"); });
        refuse("allocate", [] { runtime::Allocate(0, 1u << 20); });
        refuse("copy", [&] { runtime::Copy(block, 0, "x", FLAGOS_HOST, 1, false); });
        refuse("fill", [&] { runtime::Fill(block, 0, 0, 1); });
        refuse("synchronize", [] { runtime::SynchronizeDevice(0); });
        refuse("empty_cache", [] { runtime::EmptyCache(); });
        refuse("memory_stats", [] { runtime::GetMemoryStats(0); });
        refuse("current_stream", [] { runtime::CurrentStream(0); });
        refuse("stream_query", [&] { runtime::QueryStream(stream); });
        refuse("stream_synchronize", [&] { runtime::SynchronizeStream(stream); });
        refuse("event_create", [] { runtime::CreateEvent(0, false, false); });
        refuse("event_synchronize", [&] { runtime::SynchronizeEvent(event); });
        refuse("set_device", [] { runtime::SetDevice(0); });
        // The driver on its own keeps the same promise.
        EXPECT_EQ(runtime::Driver().memory_free(0, block), FLAGOS_OK);
        EXPECT_EQ(runtime::Driver().device_sync(0), FLAGOS_NOT_INITIALIZED);
        EXPECT_NE(std::strstr(runtime::Driver().last_error()->vendor_text, "spawn"), nullptr);
      });

      gate.Open();
      runtime::SynchronizeDevice(0);
      const auto* bytes = static_cast<const unsigned char*>(block) + offset;
      EXPECT_TRUE(std::all_of(bytes, bytes + (1u << 20), [](unsigned char byte) { return byte == 42; }));
      bytes = static_cast<const unsigned char*>(large) + offset;
      EXPECT_TRUE(std::all_of(bytes, bytes + (8u << 20), [](unsigned char byte) { return byte == 43; }));
      EXPECT_EQ(runtime::GetMemoryStats(0).allocation[runtime::kAllPools].current, 2u);
      runtime::DestroyEvent(event);
    });
  }
}

TEST(Fork, BeforeAnyContextIsHarmless) {
  InChild({}, [] {
    EXPECT_EQ(runtime::DeviceCount(), 1);
    runtime::DeviceInfo(0);
    Forked([] {
      void* block = runtime::Allocate(0, 64);
      runtime::Fill(block, 0, 3, 64);
      runtime::KernelBegin(0);
      EXPECT_EQ(View(block)[63], 3);
    });
    EXPECT_NE(runtime::Allocate(0, 64), nullptr) << "the parent is not disturbed";
  });
}

}  // namespace
}  // namespace torch_fl::test
