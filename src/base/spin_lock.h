// SPDX-License-Identifier: Apache-2.0
// A lock for sections of a few dozen instructions: half the price of std::mutex when nobody else wants it. A waiter
// gives its time slice away, so a holder that was preempted comes back.
#pragma once

#include <sched.h>

#include <atomic>

namespace torch_fl {

class SpinLock {
 public:
  void lock() noexcept {
    while (locked_.exchange(true, std::memory_order_acquire)) [[unlikely]]
      WaitUntilFree();
  }
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

 private:
  void WaitUntilFree() const noexcept {
    for (int tries = 0; locked_.load(std::memory_order_relaxed); ++tries) {
      if (tries >= 64) sched_yield();
    }
  }

  std::atomic<bool> locked_{false};
};

}  // namespace torch_fl
