// SPDX-License-Identifier: Apache-2.0
// Private pools.
#include <thread>

#include "allocator_fixture.h"

namespace torch_fl::test {
namespace {

using runtime::Allocate;
using runtime::Free;
using runtime::MemoryPoolId;
using runtime::Stream;

constexpr MemoryPoolId kPool{0, 7};
constexpr MemoryPoolId kOther{1, 7};
bool Always(Stream*) { return true; }

// Segments of a pool.
size_t SegmentsOf(MemoryPoolId id) {
  const auto all = runtime::TakeMemorySnapshot().segments;
  const auto own = runtime::TakeMemorySnapshot(id).segments;
  size_t count = 0;
  for (const auto& segment : all) count += segment.pool == id ? 1 : 0;
  EXPECT_EQ(count, own.size());
  for (const auto& segment : own) EXPECT_EQ(segment.pool, id);
  return own.size();
}

TEST(AllocatorPools, AllocationsBetweenBeginAndEnd) {
  InChild({}, [] {
    void* shared = Allocate(0, 100);
    Free(shared);
    runtime::BeginAllocateToPool(0, kPool, Always);
    void* small = Allocate(0, 100);
    void* large = Allocate(0, 3 * kMiB);
    EXPECT_NE(small, shared);
    runtime::EndAllocateToPool(0, kPool);
    EXPECT_EQ(SegmentsOf(kPool), 2u);
    EXPECT_EQ(SegmentsOf({}), 1u);
    EXPECT_EQ(Allocate(0, 100), shared);
    Free(small);
    Free(large);
    EXPECT_NE(Allocate(0, 100), small) << "freed memory stays in its pool";
    EXPECT_NE(Allocate(0, 3 * kMiB), large);
    runtime::BeginAllocateToPool(0, kPool, Always);
    EXPECT_EQ(Allocate(0, 100), small);
    EXPECT_EQ(Allocate(0, 3 * kMiB), large);
    runtime::EndAllocateToPool(0, kPool);
    ExpectConsistent();
  });
}

TEST(AllocatorPools, FiltersChooseByStream) {
  InChild({}, [] {
    Stream* side = runtime::StreamFromPool(0, 0);
    runtime::BeginAllocateToPool(0, kPool, [side](Stream* stream) { return stream == side; });
    Allocate(0, 100);
    EXPECT_EQ(SegmentsOf(kPool), 0u);
    {
      const OnStream on(side);
      Allocate(0, 100);
      EXPECT_EQ(SegmentsOf(kPool), 1u);
      // The latest begin that matches wins; when it ends the one before does.
      runtime::BeginAllocateToPool(0, kOther, Always);
      Allocate(0, 100);
      EXPECT_EQ(SegmentsOf(kOther), 1u);
      runtime::EndAllocateToPool(0, kOther);
      Allocate(0, 100);
      EXPECT_EQ(SegmentsOf(kPool), 1u);
    }
    runtime::EndAllocateToPool(0, kPool);
    ErrorOf([] { runtime::EndAllocateToPool(0, kPool); }, FLAGOS_INVALID_VALUE);
    ErrorOf([] { runtime::BeginAllocateToPool(0, {0, 0}, Always); }, FLAGOS_INVALID_VALUE);
  });
}

TEST(AllocatorPools, RetainedMemoryIsKept) {
  InChild({}, [] {
    runtime::RetainPool(0, kPool);
    runtime::RetainPool(0, kPool);
    EXPECT_EQ(runtime::PoolUseCount(0, kPool), 2);
    runtime::BeginAllocateToPool(0, kPool, Always);
    void* block = Allocate(0, 30 * kMiB);
    void* held = Allocate(0, 100);
    runtime::EndAllocateToPool(0, kPool);
    Free(block);
    Free(Allocate(0, 30 * kMiB));
    runtime::EmptyCache();
    EXPECT_EQ(SegmentsOf(kPool), 2u);
    EXPECT_EQ(SegmentsOf({}), 0u);
    runtime::EmptyCache(kPool);
    EXPECT_EQ(SegmentsOf(kPool), 2u) << "a graph may be replayed into it";
    runtime::ReleasePool(0, kPool);
    runtime::EmptyCache();
    EXPECT_EQ(SegmentsOf(kPool), 2u);
    runtime::ReleasePool(0, kPool);
    EXPECT_EQ(runtime::PoolUseCount(0, kPool), 0);
    ErrorOf([] { runtime::ReleasePool(0, kPool); }, FLAGOS_INVALID_VALUE);
    Free(Allocate(0, 30 * kMiB));
    runtime::EmptyCache(kPool);
    EXPECT_EQ(SegmentsOf(kPool), 1u) << "of that pool only, and not the block that is held";
    EXPECT_EQ(SegmentsOf({}), 1u);
    Free(held);
    runtime::EmptyCache();
    EXPECT_EQ(Reserved(), 0);
    ExpectConsistent();
  });
}

TEST(AllocatorPools, OutOfMemoryNamesThem) {
  InChild({{"FLAGOS_HOST_MEMORY", "64M"}}, [] {
    runtime::RetainPool(0, kPool);
    runtime::BeginAllocateToPool(0, kPool, Always);
    Allocate(0, 30 * kMiB);
    const std::string text = ErrorOf([] { Allocate(0, 40 * kMiB); }, FLAGOS_OUT_OF_MEMORY);
    EXPECT_NE(text.find("30.00 MiB is allocated by PyTorch, with 30.00 MiB allocated in private pools, and"),
              std::string::npos)
        << text;
    runtime::EndAllocateToPool(0, kPool);
  });
}

TEST(AllocatorPools, OtherThreadsAndDevicesAreLeftAlone) {
  InChild({{"FLAGOS_HOST_DEVICES", "2"}}, [] {
    const auto self = std::this_thread::get_id();
    runtime::BeginAllocateToPool(0, kPool, [self](Stream*) { return std::this_thread::get_id() == self; });
    std::thread([] { Allocate(0, 100); }).join();
    Allocate(1, 100);
    EXPECT_EQ(SegmentsOf(kPool), 0u);
    Allocate(0, 100);
    EXPECT_EQ(SegmentsOf(kPool), 1u);
    runtime::EndAllocateToPool(0, kPool);
  });
}

}  // namespace
}  // namespace torch_fl::test
