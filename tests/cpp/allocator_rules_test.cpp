// SPDX-License-Identifier: Apache-2.0
#include "runtime/allocator/rules.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/allocator/counters.h"

namespace torch_fl::test {
namespace {

using runtime::AllocatorConfig;
constexpr size_t kMiB = size_t{1} << 20;

TEST(AllocatorRules, RequestsAreRoundedTo512) {
  const AllocatorConfig config;
  EXPECT_EQ(runtime::RoundRequest(1, config), 512u);
  EXPECT_EQ(runtime::RoundRequest(512, config), 512u);
  EXPECT_EQ(runtime::RoundRequest(513, config), 1024u);
  EXPECT_EQ(runtime::RoundRequest(30 * kMiB + 1, config), 30 * kMiB + 512);
}

TEST(AllocatorRules, RoundupDivisionsAreBySize) {
  AllocatorConfig config;
  config.roundup_power2_divisions.assign(16, 0);
  config.roundup_power2_divisions[0] = 4;  // below 2 MiB
  config.roundup_power2_divisions[1] = 2;  // from 2 MiB
  config.roundup_power2_divisions[15] = 8;
  EXPECT_EQ(runtime::RoundRequest(1200, config), 1536u) << "too small for the divisions to matter";
  EXPECT_EQ(runtime::RoundRequest(1200 * 1024, config), 1280u * 1024);
  EXPECT_EQ(runtime::RoundRequest(kMiB, config), kMiB);
  EXPECT_EQ(runtime::RoundRequest(2 * kMiB + 1, config), 3 * kMiB);
  EXPECT_EQ(runtime::RoundRequest(5 * kMiB + 1, config), 5 * kMiB + 512) << "0 divisions";
  EXPECT_EQ(runtime::RoundRequest((size_t{100} << 30) + 1, config), size_t{104} << 30)
      << "the last entry is for all beyond";
  for (size_t size = 1; size < 64 * kMiB; size = size * 5 / 4 + 1) {
    EXPECT_GE(runtime::RoundRequest(size, config), size);
    EXPECT_EQ(runtime::RoundRequest(size, config) % 512, 0u);
  }
}

TEST(AllocatorRules, Segments) {
  AllocatorConfig config;
  EXPECT_EQ(runtime::SegmentSize(512, config), 2 * kMiB);
  EXPECT_EQ(runtime::SegmentSize(kMiB, config), 2 * kMiB);
  EXPECT_EQ(runtime::SegmentSize(kMiB + 512, config), 20 * kMiB);
  EXPECT_EQ(runtime::SegmentSize(10 * kMiB - 512, config), 20 * kMiB);
  EXPECT_EQ(runtime::SegmentSize(10 * kMiB, config), 10 * kMiB);
  EXPECT_EQ(runtime::SegmentSize(10 * kMiB + 512, config), 12 * kMiB);
  config.large_segment_size = 4 * kMiB;
  EXPECT_EQ(runtime::SegmentSize(3 * kMiB, config), 4 * kMiB);
  EXPECT_EQ(runtime::SegmentSize(5 * kMiB, config), 6 * kMiB) << "a segment holds its request";
}

TEST(AllocatorRules, Splitting) {
  AllocatorConfig config;
  EXPECT_TRUE(runtime::WorthSplitting(512, 1024, false, config));
  EXPECT_FALSE(runtime::WorthSplitting(0, 1024, false, config));
  EXPECT_FALSE(runtime::WorthSplitting(kMiB, 2 * kMiB, false, config));
  EXPECT_TRUE(runtime::WorthSplitting(kMiB + 512, 2 * kMiB, false, config));
  EXPECT_TRUE(runtime::WorthSplitting(512, 2 * kMiB, true, config)) << "expandable: any rest";
  config.max_split_size = 64 * kMiB;
  EXPECT_FALSE(runtime::WorthSplitting(10 * kMiB, 64 * kMiB, false, config));
  EXPECT_TRUE(runtime::MayServe(63 * kMiB, 2 * kMiB, config));
  EXPECT_FALSE(runtime::MayServe(64 * kMiB, 2 * kMiB, config)) << "oversize blocks are for oversize requests";
  EXPECT_TRUE(runtime::MayServe(83 * kMiB, 64 * kMiB, config));
  EXPECT_FALSE(runtime::MayServe(84 * kMiB, 64 * kMiB, config)) << "and only for those of nearly their size";
}

// The hot calls beside the plain ones, in random order: the same statistics after every step.
TEST(AllocatorCounters, HotCallsCountLikeSlowOnes) {
  runtime::Counters hot;
  runtime::Counters slow;
  const auto take = [](runtime::MemoryStats& s, int64_t size, int64_t requested) {
    runtime::Raise(s.allocation, runtime::kSmallPool, 1);
    runtime::Raise(s.active, runtime::kSmallPool, 1);
    runtime::Lower(s.inactive_split, runtime::kSmallPool, 1);
    runtime::Raise(s.allocated_bytes, runtime::kSmallPool, size);
    runtime::Raise(s.active_bytes, runtime::kSmallPool, size);
    runtime::Lower(s.inactive_split_bytes, runtime::kSmallPool, size);
    runtime::Raise(s.requested_bytes, runtime::kSmallPool, requested);
  };
  const auto give = [](runtime::MemoryStats& s, int64_t size, int64_t requested) {
    runtime::Lower(s.allocation, runtime::kSmallPool, 1);
    runtime::Lower(s.active, runtime::kSmallPool, 1);
    runtime::Raise(s.inactive_split, runtime::kSmallPool, 1);
    runtime::Lower(s.allocated_bytes, runtime::kSmallPool, size);
    runtime::Lower(s.active_bytes, runtime::kSmallPool, size);
    runtime::Raise(s.inactive_split_bytes, runtime::kSmallPool, size);
    runtime::Lower(s.requested_bytes, runtime::kSmallPool, requested);
  };
  const auto expect_equal = [](const runtime::Stat& a, const runtime::Stat& b) {
    ASSERT_EQ(a.current, b.current);
    ASSERT_EQ(a.peak, b.peak);
    ASSERT_EQ(a.allocated, b.allocated);
    ASSERT_EQ(a.freed, b.freed);
  };
  uint32_t state = 1;
  std::vector<std::pair<int64_t, int64_t>> live;
  for (int step = 0; step < 20000; ++step) {
    state = state * 1664525 + 1013904223;
    const uint32_t choice = state >> 24;
    if (choice < 120 && live.size() < 300) {
      const int64_t requested = 1 + (state >> 8) % 5000;
      const int64_t size = (requested + 511) / 512 * 512;
      hot.TakeQuick(static_cast<size_t>(size), static_cast<size_t>(requested));
      take(slow.stats(), size, requested);
      live.emplace_back(size, requested);
    } else if (choice < 240 && !live.empty()) {
      const auto [size, requested] = live[(state >> 8) % live.size()];
      live[(state >> 8) % live.size()] = live.back();
      live.pop_back();
      hot.GiveQuick(static_cast<size_t>(size), static_cast<size_t>(requested));
      give(slow.stats(), size, requested);
    } else {
      // A slow call in between: something large comes or goes, now and then peaks are reset.
      hot.Fold();
      for (runtime::Counters* counters : {&hot, &slow}) {
        runtime::MemoryStats& s = counters->stats();
        if (choice % 2 == 0) {
          runtime::Raise(s.allocation, runtime::kLargePool, 1);
          runtime::Raise(s.active_bytes, runtime::kSmallPool, 4096);
        } else {
          runtime::Lower(s.allocation, runtime::kLargePool, 1);
          runtime::Lower(s.active_bytes, runtime::kSmallPool, 4096);
        }
        if (choice == 255) runtime::ResetPeaks(s);
        if (choice == 254) runtime::ResetAccumulated(s);
      }
      hot.Arm();
    }
    if ((state >> 5) % 4 != 0) continue;  // several hot calls between two looks
    hot.Fold();
    for (const size_t i : {runtime::kAllPools, runtime::kSmallPool, runtime::kLargePool}) {
      for (const auto array :
           {&runtime::MemoryStats::allocation, &runtime::MemoryStats::active, &runtime::MemoryStats::inactive_split,
            &runtime::MemoryStats::allocated_bytes, &runtime::MemoryStats::active_bytes,
            &runtime::MemoryStats::inactive_split_bytes, &runtime::MemoryStats::requested_bytes}) {
        expect_equal((hot.stats().*array)[i], (slow.stats().*array)[i]);
      }
    }
    if (HasFatalFailure()) FAIL() << "step " << step;
    hot.Arm();
  }
}

}  // namespace
}  // namespace torch_fl::test
