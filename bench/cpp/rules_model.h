// SPDX-License-Identifier: Apache-2.0
// A compact model of the documented rules of torch's GPU allocator: what it would hold for a sequence of allocations. It
// shares nothing with src/runtime/allocator, so that the two can be compared. No memory limit, one device, one thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace torch_fl::bench {

class RulesModel {
 public:
  void Allocate(uint64_t id, uint64_t size, int64_t stream);
  void Free(uint64_t id);

  uint64_t peak_allocated() const { return peak_allocated_; }
  uint64_t peak_reserved() const { return reserved_; }  // nothing is ever given back
  uint64_t segments() const { return next_segment_; }

 private:
  struct Pool {  // of one stream and one size class
    std::set<std::tuple<uint64_t, uint64_t, uint64_t>> free;  // size, segment, offset: smallest first, then lowest
  };
  struct Piece {
    uint64_t size = 0;
    bool free = false;
    Pool* pool = nullptr;
  };
  using Place = std::pair<uint64_t, uint64_t>;  // segment, offset

  std::map<std::pair<int64_t, bool>, Pool> pools_;
  std::map<Place, Piece> pieces_;
  std::map<uint64_t, Place> live_;
  uint64_t next_segment_ = 0;
  uint64_t allocated_ = 0, peak_allocated_ = 0, reserved_ = 0;
};

}  // namespace torch_fl::bench
