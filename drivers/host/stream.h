// SPDX-License-Identifier: Apache-2.0
// Streams, events and their handles.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <unordered_map>

#include "host/host.h"

namespace flagos_host {

// A handle is a number that is never used twice, so a destroyed, foreign or NULL handle is found out without reading
// memory through it.
template <class Object, class Handle>
class HandleTable {
 public:
  Handle Insert(std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    const uintptr_t number = next_;
    next_ += kStep;
    objects_.emplace(number, std::move(object));
    return reinterpret_cast<Handle>(number);
  }
  std::shared_ptr<Object> Find(Handle handle) const {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    return found != objects_.end() ? found->second : nullptr;
  }
  std::shared_ptr<Object> Take(Handle handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(reinterpret_cast<uintptr_t>(handle));
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<Object> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  static constexpr uintptr_t kStep = 16;  // what a pointer would look like
  mutable std::mutex mutex_;
  uintptr_t next_ = kStep;
  std::unordered_map<uintptr_t, std::shared_ptr<Object>> objects_;
};

// An in-order queue with a worker thread of its own, started by the first task. The worker holds a reference: a stream
// destroyed with work pending finishes it.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  using Task = std::function<void()>;

  explicit Stream(int device_index) : device(device_index) {}

  const int device;

  void Submit(Task task);
  bool Idle() const;
  void Wait();      // for everything submitted up to now
  void Finish();    // no more tasks: the worker ends after the last one

 private:
  void Start();
  void Work();

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::deque<Task> queue_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
  bool started_ = false;
  bool finishing_ = false;
};

// A point in a stream. Each record is a generation; waiting means waiting for the generation of the call.
class Event {
 public:
  using Clock = std::chrono::steady_clock;

  Event(int device_index, uint32_t event_flags) : device(device_index), flags(event_flags) {}

  const int device;
  const uint32_t flags;

  uint64_t Record();
  void Complete(uint64_t generation);
  uint64_t Recorded() const;
  bool Done() const;
  void Wait(uint64_t generation) const;
  // FLAGOS_OK, FLAGOS_NOT_READY while pending, FLAGOS_INVALID_HANDLE when never recorded.
  flagos_status_t When(Clock::time_point* out) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable done_;
  uint64_t recorded_ = 0;
  uint64_t completed_ = 0;
  Clock::time_point when_;
};

std::shared_ptr<Stream> FindStream(flagos_stream_t handle);
std::shared_ptr<Event> FindEvent(flagos_event_t handle);
flagos_status_t BadStream(const char* function);
flagos_status_t BadEvent(const char* function);
flagos_status_t RefuseOnWorker(const char* function);

}  // namespace flagos_host
