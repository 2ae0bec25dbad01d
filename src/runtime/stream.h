// SPDX-License-Identifier: Apache-2.0
// What a Stream is. Not for other layers.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/internal.h"

namespace torch_fl::runtime {

// The runtime counts what it submits, so that waiting for a stream with nothing pending costs two loads. A stream whose
// native handle was handed out receives work the runtime does not see and never counts as idle.
class Stream {
 public:
  Stream(int device, int64_t id, int priority) : device_(device), priority_(priority), id_(id) {}

  int device() const noexcept { return device_; }
  int priority() const noexcept { return priority_; }
  int64_t id() const noexcept { return id_; }

  bool Dirty() const noexcept {
    const uint64_t submitted = submitted_.load(std::memory_order_acquire);
    if (submitted == 0) return false;
    return submitted != drained_.load(std::memory_order_acquire);
  }
  // After work was submitted: a mark before it could be cleared by a wait that did not cover the work.
  void MarkSubmitted() noexcept { submitted_.fetch_add(1, std::memory_order_release); }
  uint64_t Mark() const noexcept { return submitted_.load(std::memory_order_acquire); }
  // Everything submitted before `mark` was taken is done.
  void MarkDrained(uint64_t mark) noexcept;
  void Drain() {
    if (Dirty()) [[unlikely]]
      Synchronize();
  }
  // Waits for the driver, whatever the marks say.
  void Synchronize();
  bool Query();

  // The driver's handle, made on first use.
  flagos_stream_t Handle();
  bool has_handle() const noexcept { return handle_.load(std::memory_order_acquire) != nullptr; }
  void* Native();
  void Adopt(flagos_stream_t handle) noexcept;
  void DestroyHandle() noexcept;

 private:
  const int device_;
  const int priority_;
  const int64_t id_;
  std::atomic<flagos_stream_t> handle_{nullptr};
  std::atomic<uint64_t> submitted_{0};
  std::atomic<uint64_t> drained_{0};
  std::atomic<bool> shared_{false};  // native handle handed out
  std::mutex mutex_;  // makes the handle once
};

// Gives the handles of all streams back to the driver; pending work still runs. At exit: a later use would make new ones.
void DestroyStreamHandles() noexcept;

// The current stream of the calling thread if it or the default stream was ever made, else NULL: nothing can be queued.
Stream* CurrentStreamIfMade(int device) noexcept;
Stream* DefaultStreamIfMade(int device) noexcept;

// Marks of all streams of a device, taken before device_sync.
class DeviceMarks {
 public:
  explicit DeviceMarks(int device);
  void Drained() noexcept;

 private:
  std::vector<std::pair<Stream*, uint64_t>> marks_;
};

}  // namespace torch_fl::runtime
