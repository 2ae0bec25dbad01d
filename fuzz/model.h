// SPDX-License-Identifier: Apache-2.0
// What a program knows: its objects, what orders what, and which bytes memory must hold.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "torch_fl/driver.h"

namespace torch_fl::fuzz {

inline constexpr int kMaxQueues = 48;  // of one program, destroyed ones included

// How far each queue is known to have come.
struct Clock {
  std::array<uint32_t, kMaxQueues> at{};
  void Join(const Clock& other) {
    for (int i = 0; i < kMaxQueues; ++i) at[i] = std::max(at[i], other.at[i]);
  }
};

// Counts the host functions that ran on a queue; they must come in order.
struct HostFunctions {
  std::atomic<uint32_t> ran{0};
  std::atomic<bool> out_of_order{false};
};

struct Queue {
  flagos_stream_t handle;  // NULL once destroyed
  int device;
  int id;                // index into clocks
  uint32_t position = 0;  // accesses queued so far
  Clock clock;           // what is done before the next one starts
  bool idle = true;      // the host waited for it and queued nothing since
  uint32_t host_functions = 0;
  std::shared_ptr<HostFunctions> functions = std::make_shared<HostFunctions>();
};

struct EventState {
  flagos_event_t handle;
  int device;
  bool timing;
  bool recorded = false;
  Clock clock;  // of the last record
};

struct Access {
  int queue;
  uint32_t position;
  bool write;
};

enum class Kind { kBlock, kMapped, kPinned, kRegistered };

// Memory that copies may use.
struct Memory {
  Kind kind;
  int device;  // FLAGOS_HOST for host memory
  uint8_t* pointer;
  std::vector<uint8_t> bytes;     // what it holds once all ordered work ran
  bool known = false;             // `bytes` can be relied on
  std::vector<Access> accesses;  // that the host did not wait for
  uint8_t* base = nullptr;       // kMapped: the reservation; kRegistered: what was allocated
  size_t base_size = 0;

  bool OnDevice() const { return kind == Kind::kBlock || kind == Kind::kMapped; }
};

// The bytes of a program. After the end there are zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool Empty() const { return next_ >= size_; }
  uint8_t Byte() { return next_ < size_ ? data_[next_++] : uint8_t{0}; }
  uint32_t Word() {
    const uint32_t low = Byte();
    return low | uint32_t{Byte()} << 8;
  }
  int Below(size_t bound) { return static_cast<int>(Word() % bound); }
  bool Chance(int of_256) { return Byte() < of_256; }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t next_ = 0;
};

}  // namespace torch_fl::fuzz
