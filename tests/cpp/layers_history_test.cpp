// SPDX-License-Identifier: Apache-2.0
// The validate layer's memory of accesses by itself, and the layer under the runtime on the host driver.
#include <thread>

#include "child.h"
#include "runtime/layers.h"
#include "runtime/layers/order.h"

namespace torch_fl::test {
namespace {

constexpr size_t kSize = 4096;

TEST(LayersOrder, HistoryIsBounded) {
  using runtime::layers::Access;
  using runtime::layers::History;
  const runtime::layers::Clock nothing;
  const runtime::layers::Clock everything{1'000'000};
  History history;
  // Reads in pieces, then one write: one entry.
  for (uintptr_t i = 0; i < 500; ++i) history.Record(i * 8, i * 8 + 8, Access{i + 1, 0, 1, "read", false}, nothing);
  EXPECT_EQ(history.size(), 500u);
  history.Record(0, 4000, Access{501, 0, 1, "write", true}, nothing);
  EXPECT_EQ(history.size(), 1u);
  // What the host saw goes at the next sweep; equal neighbours become one.
  for (uintptr_t i = 0; i < 100'000; ++i)
    history.Record(i * 8, i * 8 + 4, Access{i + 502, 0, 1, "read", false}, everything);
  EXPECT_LT(history.size(), 3000u);
  History merged;
  for (uintptr_t i = 0; i < 5000; ++i) merged.Record(i * 8, i * 8 + 8, Access{1, 0, 1, "write", true}, nothing);
  EXPECT_LT(merged.size(), 3000u);
  // A hole between two parts of one access stays a hole.
  History holes;
  for (uintptr_t i = 0; i < 5000; ++i) holes.Record(i * 8, i * 8 + 4, Access{1, 0, 1, "write", true}, nothing);
  EXPECT_EQ(holes.size(), 5000u);
  EXPECT_FALSE(holes.Find(4, 8, true, nothing).has_value());
  EXPECT_TRUE(holes.Find(4, 9, true, nothing).has_value());
}

// ---- Through the runtime, on the real host driver

TEST(LayersOrder, KernelsOfTheRuntime) {
  for (const char* queue : {"eager", "lazy"}) {
    InChild({{"FLAGOS_DRIVER_LAYERS", "validate"}, {"FLAGOS_HOST_QUEUE", queue}}, [] {
      ASSERT_NE(runtime::GetDriverInfo().capabilities & FLAGOS_CAP_KERNEL_ORDER, 0u);
      ASSERT_NE(runtime::g_attention.load() & runtime::kAttentionKernels, 0u);
      EXPECT_EQ(runtime::GetDriverInfo().layers, (std::vector<std::string>{"validate"}));
      void* block = runtime::Allocate(0, kSize, "test");
      runtime::Stream* first = runtime::StreamFromPool(0, 0);
      runtime::Stream* second = runtime::StreamFromPool(0, 0);
      const flagos_access_t write{block, kSize, 1};
      const flagos_access_t read{block, kSize, 0};
      const auto kernel = [&](runtime::Stream* stream, const char* name, const flagos_access_t& access) {
        runtime::Stream* before = runtime::ExchangeCurrentStream(stream);
        runtime::KernelBegin(0);
        flagos_status_t status = FLAGOS_OK;
        try {
          runtime::KernelEnd(0, name, &access, 1);
        } catch (const Error& error) {
          status = error.status();
          EXPECT_NE(std::string(error.what()).find("is not ordered behind"), std::string::npos) << error.what();
        }
        runtime::ExchangeCurrentStream(before);
        return status;
      };
      EXPECT_EQ(kernel(first, "aten::fill_", write), FLAGOS_OK);
      EXPECT_EQ(kernel(second, "aten::mul", read), FLAGOS_UNORDERED);
      runtime::Event* event = runtime::CreateEvent(0, false, false);
      runtime::RecordEvent(event, first);
      runtime::StreamWaitEvent(second, event);
      EXPECT_EQ(kernel(second, "aten::mul", read), FLAGOS_OK);
      EXPECT_EQ(kernel(first, "aten::fill_", write), FLAGOS_UNORDERED);
      runtime::SynchronizeDevice(0);
      EXPECT_EQ(kernel(first, "aten::fill_", write), FLAGOS_OK);
      runtime::SynchronizeStream(first);
      runtime::DestroyEvent(event);
      runtime::Free(block);
    });
  }
}

TEST(LayersOrder, ThreadsEachOnTheirStream) {
  InChild({{"FLAGOS_DRIVER_LAYERS", "validate,delay:max_us=20"}}, [] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([] {
        runtime::ExchangeCurrentStream(runtime::StreamFromPool(0, 0));
        for (int round = 0; round < 20; ++round) {
          char host[256] = {};
          void* block = runtime::Allocate(0, sizeof host);
          runtime::Fill(block, 0, 7, sizeof host);
          runtime::KernelBegin(0);
          const flagos_access_t access{block, sizeof host, 1};
          runtime::KernelEnd(0, "aten::add_", &access, 1);
          runtime::Copy(host, FLAGOS_HOST, block, 0, sizeof host, false);
          EXPECT_EQ(host[255], 7);
          runtime::Free(block);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(runtime::GetValidateCounts().unordered, 0u);
    EXPECT_EQ(runtime::GetValidateCounts().misuses, 0u);
  });
}

}  // namespace
}  // namespace torch_fl::test
