// SPDX-License-Identifier: Apache-2.0
// What orders work: vector clocks over what the calls of the interface say, never over what really finished.
//
// Every piece of work gets a number that only grows. A clock says, for each stream, up to which number its work is known
// to come before. The host has one clock for the whole process: that work is complete is a fact, whichever thread saw it.
//
// Not thread-safe; the validate layer's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace torch_fl::runtime::layers {

// By slot. A slot is a stream, and after it ended and all its work was seen to be complete, another one: numbers grow, so
// what the old one did stays ordered.
using Clock = std::vector<uint64_t>;

void Join(Clock* clock, const Clock& other);

struct Access {
  uint64_t number = 0;  // 0: none
  uint32_t slot = 0;
  uint32_t stream = 0;  // for messages: counts streams of the process
  const char* name = nullptr;  // lives for ever
  bool is_write = false;
};

class Order {
 public:
  uint32_t OpenStream(int device);  // a slot
  void CloseStream(uint32_t slot);  // its pending work still runs
  // A second handle of the same queue.
  void ShareStream(uint32_t slot) { ++slots_[slot].users; }

  uint64_t NextNumber() { return ++last_number_; }
  // What comes before work that is submitted to the stream now. The reference is good until the next call.
  const Clock& Now(uint32_t slot);
  // What comes before work that waits for all streams of the devices; -1 is no device.
  Clock OfDevices(int device, int other = -1) const;
  void Submitted(uint32_t slot, uint64_t number);
  void StreamWaits(uint32_t slot, const Clock& clock) { Join(&slots_[slot].clock, clock); }
  void HostSaw(const Clock& clock) { Join(&host_, clock); }
  const Clock& host() const { return host_; }

 private:
  struct Slot {
    int device = -1;
    uint32_t users = 0;  // handles
    uint64_t last = 0;  // number of the last work
    Clock clock;
  };

  std::vector<Slot> slots_;
  Clock host_;
  uint64_t last_number_ = 0;
};

inline bool Covers(const Clock& clock, const Access& access) {
  return access.slot < clock.size() && clock[access.slot] >= access.number;
}

// The last writer and the readers since of every address of one address space. What the host saw complete is forgotten:
// it comes before everything that follows.
class History {
 public:
  struct Conflict {
    Access access;
    uintptr_t begin = 0;
    uintptr_t end = 0;
  };
  // The first access to [begin, end) that conflicts and that the clock does not cover.
  std::optional<Conflict> Find(uintptr_t begin, uintptr_t end, bool is_write, const Clock& clock) const;
  void Record(uintptr_t begin, uintptr_t end, const Access& access, const Clock& host);

  struct Node {
    uintptr_t end = 0;
    Access writer;
    std::vector<Access> readers;  // one of each slot
  };
  using Nodes = std::map<uintptr_t, Node>;
  // Takes the range's accesses out; Restore puts them back.
  Nodes Take(uintptr_t begin, uintptr_t end);
  void Restore(Nodes nodes) { nodes_.merge(nodes); }
  size_t size() const { return nodes_.size(); }

 private:
  void SplitAt(uintptr_t address);
  void Sweep(const Clock& host);

  Nodes nodes_;
  size_t sweep_at_ = kFirstSweep;
  static constexpr size_t kFirstSweep = 1024;
};

}  // namespace torch_fl::runtime::layers
