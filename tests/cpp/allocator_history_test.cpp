// SPDX-License-Identifier: Apache-2.0
// Trace entries and contexts.
#include <thread>

#include "allocator_fixture.h"

namespace torch_fl::test {
namespace {

using runtime::Allocate;
using runtime::Free;
using runtime::HistoryContext;
using runtime::TraceAction;

std::atomic<int> g_gathered{0};
std::atomic<int> g_alive{0};

struct Mark {
  explicit Mark(int n) : number(n) { ++g_alive; }
  ~Mark() {
    --g_alive;
    // A foreign deleter may well use the allocator.
    runtime::GetMemoryStats(0);
  }
  const int number;
};

runtime::MemoryContext Gather() {
  runtime::GetMemoryStats(0);  // would hang if the lock were held
  return std::make_shared<Mark>(++g_gathered);
}
int NumberOf(const runtime::MemoryContext& context) {
  return context == nullptr ? 0 : static_cast<const Mark*>(context.get())->number;
}

std::vector<TraceAction> ActionsOf(const std::vector<runtime::TraceEntry>& entries) {
  std::vector<TraceAction> actions;
  for (const auto& entry : entries) actions.push_back(entry.action);
  return actions;
}

TEST(AllocatorHistory, EntriesInOrder) {
  InChild({{"FLAGOS_HOST_MEMORY", "64M"}}, [] {
    EXPECT_FALSE(runtime::MemoryHistoryEnabled());
    runtime::RecordMemoryHistory(100, HistoryContext::kAll, Gather);
    EXPECT_TRUE(runtime::MemoryHistoryEnabled());
    void* block = Allocate(0, 1000);
    Free(block);
    runtime::EmptyCache();
    ErrorOf([] { Allocate(0, 100 * kMiB); }, FLAGOS_OUT_OF_MEMORY);
    const auto snapshot = runtime::TakeMemorySnapshot();
    ASSERT_EQ(snapshot.traces.size(), 1u);
    const auto& entries = snapshot.traces[0];
    EXPECT_EQ(ActionsOf(entries),
              (std::vector<TraceAction>{TraceAction::kSegmentAlloc, TraceAction::kAlloc, TraceAction::kFreeRequested,
                                        TraceAction::kFreeCompleted, TraceAction::kSegmentFree, TraceAction::kOom}));
    EXPECT_EQ(entries[1].address, reinterpret_cast<uint64_t>(block));
    EXPECT_EQ(entries[1].size, 1000u);
    EXPECT_EQ(entries[0].size, 2 * kMiB);
    EXPECT_EQ(entries[5].address, 64 * kMiB) << "bytes that were free";
    EXPECT_EQ(entries[5].size, 100 * kMiB);
    EXPECT_EQ(NumberOf(entries[1].context), 1);
    EXPECT_EQ(NumberOf(entries[2].context), 2) << "kAll: frees have contexts of their own";
    for (size_t i = 1; i < entries.size(); ++i) EXPECT_GE(entries[i].time_us, entries[i - 1].time_us);
    EXPECT_EQ(runtime::TakeMemorySnapshot().traces[0].back().action, TraceAction::kSnapshot);
  });
}

TEST(AllocatorHistory, FreeCompletesWhenTheStreamsAreDone) {
  InChild({}, [] {
    runtime::RecordMemoryHistory(100, HistoryContext::kAlloc, Gather);
    runtime::Stream* side = runtime::StreamFromPool(0, 0);
    void* block = Allocate(0, 1000);
    {
      Gate gate(side);
      runtime::RecordStream(block, side);
      Free(block);
      EXPECT_EQ(runtime::TakeMemorySnapshot().traces[0].back().action, TraceAction::kFreeRequested);
    }
    runtime::SynchronizeStream(side);
    runtime::EmptyCache();
    const auto entries = runtime::TakeMemorySnapshot().traces[0];
    ASSERT_GE(entries.size(), 2u);
    EXPECT_EQ(entries[entries.size() - 2].action, TraceAction::kFreeCompleted);
    EXPECT_EQ(entries.back().action, TraceAction::kSegmentFree);
    EXPECT_EQ(NumberOf(entries[2].context), 1) << "kAlloc: a free shows where the block came from";
  });
}

TEST(AllocatorHistory, TheRingKeepsTheNewest) {
  InChild({}, [] {
    runtime::RecordMemoryHistory(10, HistoryContext::kAll, Gather);
    std::vector<void*> blocks;
    for (int i = 0; i < 50; ++i) blocks.push_back(Allocate(0, 100));
    {
      const auto entries = runtime::TakeMemorySnapshot().traces[0];
      ASSERT_EQ(entries.size(), 10u);
      for (size_t i = 0; i < 10; ++i) EXPECT_EQ(entries[i].address, reinterpret_cast<uint64_t>(blocks[40 + i]));
    }
    for (void* block : blocks) Free(block);
    EXPECT_EQ(g_alive.load(), 11) << "five frees, with what they and their allocations gathered, and the segment";
    runtime::RecordMemoryHistory(0, HistoryContext::kNever, nullptr);
    EXPECT_EQ(g_alive.load(), 1);
    runtime::EmptyCache();
    EXPECT_EQ(g_alive.load(), 0);
    EXPECT_EQ(runtime::TakeMemorySnapshot().traces[0].size(), 0u);
  });
}

TEST(AllocatorHistory, ContextsOfLiveBlocksOnly) {
  InChild({}, [] {
    runtime::RecordMemoryHistory(100, HistoryContext::kState, Gather);
    void* block = Allocate(0, 1000);
    const auto snapshot = runtime::TakeMemorySnapshot();
    ASSERT_EQ(snapshot.segments.size(), 1u);
    EXPECT_EQ(NumberOf(snapshot.segments[0].context), 1);
    EXPECT_EQ(NumberOf(snapshot.segments[0].blocks[0].context), 1);
    EXPECT_EQ(NumberOf(snapshot.segments[0].blocks[1].context), 0);
    for (const auto& entry : snapshot.traces[0]) EXPECT_EQ(entry.context, nullptr);
    Free(block);
    EXPECT_EQ(g_gathered.load(), 1);
    runtime::RecordMemoryHistory(100, HistoryContext::kNever, Gather);
    Allocate(0, 1000);
    EXPECT_EQ(g_gathered.load(), 1);
    EXPECT_EQ(runtime::TakeMemorySnapshot().traces[0].size(), 1u);
  });
}

TEST(AllocatorHistory, EveryDeviceHasItsOwn) {
  InChild({{"FLAGOS_HOST_DEVICES", "3"}}, [] {
    Allocate(0, 100);
    runtime::RecordMemoryHistory(100, HistoryContext::kNever, nullptr);
    Allocate(2, 100);
    const auto snapshot = runtime::TakeMemorySnapshot();
    ASSERT_EQ(snapshot.traces.size(), 3u);
    EXPECT_EQ(snapshot.traces[0].size(), 0u);
    EXPECT_EQ(snapshot.traces[1].size(), 0u);
    EXPECT_EQ(snapshot.traces[2].size(), 2u) << "an allocator made later follows the setting";
    ASSERT_EQ(snapshot.segments.size(), 2u);
    EXPECT_EQ(snapshot.segments[0].device, 0);
    EXPECT_EQ(snapshot.segments[1].device, 2);
  });
}

TEST(AllocatorHistory, WithThreads) {
  InChild({}, [] {
    runtime::RecordMemoryHistory(64, HistoryContext::kAll, Gather);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 300; ++i) {
          void* block = Allocate(0, 100 + static_cast<size_t>(i) * 10);
          if (i % 50 == 0) runtime::TakeMemorySnapshot();
          Free(block);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    runtime::RecordMemoryHistory(0, HistoryContext::kNever, nullptr);
    runtime::EmptyCache();
    EXPECT_EQ(g_alive.load(), 0);
    EXPECT_EQ(Reserved(), 0);
  });
}

}  // namespace
}  // namespace torch_fl::test
