// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "runtime/layers/entries.h"
#include "runtime/layers/layer.h"

namespace torch_fl::runtime {
namespace layers {
namespace {

std::atomic<bool> g_claimed{false};
std::array<std::atomic<uint64_t>, kStatusEntries.size()> g_calls;

}  // namespace

bool ClaimCallCounts() noexcept { return !g_claimed.exchange(true); }
void CountCall(size_t entry) noexcept { g_calls[entry].fetch_add(1, std::memory_order_relaxed); }

}  // namespace layers

std::vector<std::pair<std::string, uint64_t>> TakeCallCounts() {
  layers::RequireLayer(layers::g_claimed.load(), "TakeCallCounts", "fault or trace");
  std::vector<std::pair<std::string, uint64_t>> counts;
  for (size_t i = 0; i < layers::kStatusEntries.size(); ++i) {
    const uint64_t calls = layers::g_calls[i].exchange(0);
    if (calls != 0) counts.emplace_back(layers::kStatusEntries[i], calls);
  }
  return counts;
}

}  // namespace torch_fl::runtime
