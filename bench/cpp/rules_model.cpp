// SPDX-License-Identifier: Apache-2.0
#include "rules_model.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace torch_fl::bench {
namespace {

constexpr uint64_t kKi = 1024;
constexpr uint64_t kMi = 1024 * kKi;

uint64_t UpTo(uint64_t size, uint64_t unit) { return (size + unit - 1) / unit * unit; }

uint64_t SegmentFor(uint64_t rounded) {
  if (rounded <= kMi) return 2 * kMi;
  if (rounded < 10 * kMi) return 20 * kMi;
  return UpTo(rounded, 2 * kMi);
}

}  // namespace

void RulesModel::Allocate(uint64_t id, uint64_t size, int64_t stream) {
  if (live_.count(id) != 0) throw std::runtime_error("id " + std::to_string(id) + " is allocated already");
  const uint64_t rounded = UpTo(std::max<uint64_t>(size, 1), 512);
  const bool small = rounded <= kMi;
  Pool& pool = pools_[{stream, small}];
  Place place;
  const auto best = pool.free.lower_bound({rounded, 0, 0});
  if (best != pool.free.end()) {
    place = {std::get<1>(*best), std::get<2>(*best)};
    pool.free.erase(best);
  } else {
    place = {next_segment_++, 0};
    const uint64_t bytes = SegmentFor(rounded);
    reserved_ += bytes;
    pieces_[place] = {bytes, true, &pool};
  }
  Piece& piece = pieces_[place];
  piece.free = false;
  const uint64_t rest = piece.size - rounded;
  if (small ? rest >= 512 : rest > kMi) {
    piece.size = rounded;
    pieces_[{place.first, place.second + rounded}] = {rest, true, &pool};
    pool.free.insert({rest, place.first, place.second + rounded});
  }
  live_[id] = place;
  allocated_ += piece.size;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
}

void RulesModel::Free(uint64_t id) {
  const auto found = live_.find(id);
  if (found == live_.end()) throw std::runtime_error("id " + std::to_string(id) + " is not allocated");
  auto here = pieces_.find(found->second);
  live_.erase(found);
  Pool& pool = *here->second.pool;
  allocated_ -= here->second.size;
  const auto next = std::next(here);
  if (next != pieces_.end() && next->first.first == here->first.first && next->second.free) {
    pool.free.erase({next->second.size, next->first.first, next->first.second});
    here->second.size += next->second.size;
    pieces_.erase(next);
  }
  if (here != pieces_.begin()) {
    const auto before = std::prev(here);
    if (before->first.first == here->first.first && before->second.free) {
      pool.free.erase({before->second.size, before->first.first, before->first.second});
      before->second.size += here->second.size;
      pieces_.erase(here);
      here = before;
    }
  }
  here->second.free = true;
  pool.free.insert({here->second.size, here->first.first, here->first.second});
}

}  // namespace torch_fl::bench
