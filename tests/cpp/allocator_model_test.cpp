// SPDX-License-Identifier: Apache-2.0
// The allocator beside the model of torch's rules that the replay tool compares it with.
#include <random>

#include "allocator_fixture.h"
#include "rules_model.h"

namespace torch_fl::test {
namespace {

using runtime::Stream;

struct Sizes {
  size_t smallest;
  size_t largest;
};

// Peaks of both after random allocations and frees on two streams.
void RunBoth(unsigned seed, Sizes sizes, double tolerance) {
  std::mt19937 random(seed);
  bench::RulesModel model;
  Stream* const streams[] = {runtime::DefaultStream(0), runtime::StreamFromPool(0, 0)};
  std::vector<std::pair<uint64_t, void*>> live;
  for (uint64_t id = 1; id <= 3000; ++id) {
    if (live.size() < 60 && random() % 5 < 3) {
      // Sizes repeat, as they do in training.
      const size_t size = sizes.smallest + (random() % 40) * ((sizes.largest - sizes.smallest) / 40);
      const size_t stream = random() % 2;
      const OnStream on(streams[stream]);
      live.emplace_back(id, runtime::Allocate(0, size));
      model.Allocate(id, size, static_cast<int64_t>(stream));
    } else if (!live.empty()) {
      const size_t index = random() % live.size();
      model.Free(live[index].first);
      runtime::Free(live[index].second);
      live[index] = live.back();
      live.pop_back();
    }
  }
  const auto stats = runtime::GetMemoryStats(0);
  EXPECT_EQ(static_cast<uint64_t>(Total(stats.allocated_bytes).peak), model.peak_allocated()) << "seed " << seed;
  const auto reserved = static_cast<double>(Total(stats.reserved_bytes).peak);
  EXPECT_LE(reserved, static_cast<double>(model.peak_reserved()) * tolerance) << "seed " << seed;
  if (tolerance == 1) {
    EXPECT_EQ(reserved, static_cast<double>(model.peak_reserved())) << "seed " << seed;
  }
  ExpectConsistent();
}

TEST(AllocatorModel, LargeBlocksFollowTheRulesExactly) {
  for (const unsigned seed : {1u, 2u}) {
    InChild({{"FLAGOS_HOST_MEMORY", "16G"}}, [seed] { RunBoth(seed, {kMiB + 1, 40 * kMiB}, 1); });
  }
}

// Quick lists put merging off, which may cost or save a segment.
TEST(AllocatorModel, SmallBlocksHoldAboutTheSame) {
  for (const unsigned seed : {1u, 2u}) {
    InChild({{"FLAGOS_HOST_MEMORY", "16G"}}, [seed] { RunBoth(seed, {1, kMiB}, 1.15); });
  }
}

}  // namespace
}  // namespace torch_fl::test
