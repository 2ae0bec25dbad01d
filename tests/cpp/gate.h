// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>

#include "runtime/runtime.h"

namespace torch_fl::test {

// Holds a stream back until Open: what is queued behind it stays pending, without sleeping or guessing.
class Gate {
 public:
  explicit Gate(runtime::Stream* stream) { runtime::StreamHostFunc(stream, &Gate::Wait, this); }
  ~Gate() {
    Open();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return passed_; });
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  static void Wait(void* data) {
    auto* gate = static_cast<Gate*>(data);
    std::unique_lock lock(gate->mutex_);
    gate->changed_.wait(lock, [&] { return gate->open_; });
    gate->passed_ = true;
    gate->changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  bool passed_ = false;
};

}  // namespace torch_fl::test
