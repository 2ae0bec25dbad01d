// SPDX-License-Identifier: Apache-2.0
// Host cost of what every operator pays: memory that is cached, streams with nothing to wait for.
#include <benchmark/benchmark.h>

#include <vector>

#include "runtime/allocator.h"
#include "runtime/pinned.h"
#include "runtime/runtime.h"

namespace torch_fl::runtime {
namespace {

void AllocatorHit(benchmark::State& state) {
  const auto size = static_cast<size_t>(state.range(0));
  void* neighbour = Allocate(0, size);
  Free(Allocate(0, size));
  for (auto _ : state) {
    void* block = Allocate(0, size, "bench");
    benchmark::DoNotOptimize(block);
    Free(block);
  }
  Free(neighbour);
}
BENCHMARK(AllocatorHit)->Arg(512)->Arg(4096)->Arg(1 << 20)->Arg(4 << 20)->Arg(64 << 20);

// Many sizes are alive, as in a training step.
void AllocatorStep(benchmark::State& state) {
  constexpr size_t kBlocks = 256;
  std::vector<void*> blocks(kBlocks);
  for (auto _ : state) {
    for (size_t i = 0; i < kBlocks; ++i) blocks[i] = Allocate(0, 512 * (1 + i * 37 % 97), "bench");
    for (size_t i = 0; i < kBlocks; ++i) Free(blocks[i * 101 % kBlocks]);
  }
  state.SetItemsProcessed(static_cast<int64_t>(kBlocks) * static_cast<int64_t>(state.iterations()));
}
BENCHMARK(AllocatorStep);

void AllocatorWithRecordStream(benchmark::State& state) {
  Stream* side = StreamFromPool(0, 0);
  void* target = Allocate(0, 64);
  for (auto _ : state) {
    void* block = Allocate(0, 4096, "bench");
    if (state.range(0) != 0) {
      Stream* previous = ExchangeCurrentStream(side);
      Fill(target, 0, 1, 64);
      ExchangeCurrentStream(previous);
    }
    RecordStream(block, side);
    Free(block);
  }
  SynchronizeStream(side);
  Free(target);
}
BENCHMARK(AllocatorWithRecordStream)->ArgName("busy")->Arg(0)->Arg(1);

void RecordAndWait(benchmark::State& state) {
  Stream* first = StreamFromPool(0, 0);
  Stream* second = StreamFromPool(0, 0);
  Event* event = CreateEvent(0, false, false);
  for (auto _ : state) {
    RecordEvent(event, first);
    StreamWaitEvent(second, event);
  }
  SynchronizeDevice(0);
  DestroyEvent(event);
}
BENCHMARK(RecordAndWait);

void WaitForEmptyEvent(benchmark::State& state) {
  Stream* stream = StreamFromPool(0, 0);
  Event* event = CreateEvent(0, false, false);
  for (auto _ : state) StreamWaitEvent(stream, event);
  SynchronizeDevice(0);
  DestroyEvent(event);
}
BENCHMARK(WaitForEmptyEvent);

void KernelBeginOnIdleStream(benchmark::State& state) {
  CurrentStream(0);
  for (auto _ : state) KernelBegin(0);
}
BENCHMARK(KernelBeginOnIdleStream);

void PinnedHit(benchmark::State& state) {
  for (auto _ : state) {
    void* block = HostAllocate(4096);
    benchmark::DoNotOptimize(block);
    HostFree(block);
  }
}
BENCHMARK(PinnedHit);

}  // namespace
}  // namespace torch_fl::runtime

BENCHMARK_MAIN();
