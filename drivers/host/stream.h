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
// memory through it. Tables with different tags never share a number.
template <class Object, class Handle, uintptr_t kTag>
class HandleTable {
  static constexpr uintptr_t kStep = 16;  // what a pointer would look like
  static_assert(kTag < kStep);

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
  mutable std::mutex mutex_;
  uintptr_t next_ = kStep + kTag;
  std::unordered_map<uintptr_t, std::shared_ptr<Object>> objects_;
};

// An in-order queue with a worker thread of its own, started by the first task. The worker holds a reference: a stream
// destroyed with work pending finishes it. Tasks are numbered from 1.
//
// Queue mode `eager` runs a task as soon as the worker is free. With `lazy` the worker stops before the first task that
// nobody released; waiting releases, and so does asking in vain.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  using Task = std::function<void()>;

  Stream(int device_index, int stream_priority) : device(device_index), priority(stream_priority) {}

  const int device;
  const int priority;
  // The handle of stream_create, constant from then on. Wrappers are other handles of the same stream.
  flagos_stream_t native = nullptr;

  uint64_t Submit(Task task);  // its number
  bool Idle() const;
  bool Reached(uint64_t number) const;
  void Release();  // everything submitted up to now
  void Release(uint64_t number);
  void Wait();  // for everything submitted up to now; releases it
  void WaitFor(uint64_t number);
  void Finish();  // its handle is gone: the worker ends after the last task
  bool Finishing() const;
  // Makes the worker give way to others, now or when it starts.
  void GiveWay();

 private:
  void Start();
  void Work();
  void ReleaseLocked(uint64_t number);
  // Tasks up to this number may run.
  uint64_t Limit() const;

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::deque<Task> queue_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
  uint64_t released_ = 0;  // queue mode lazy
  bool started_ = false;
  bool finishing_ = false;
  bool gives_way_ = false;
  int thread_ = 0;  // the worker's id for setpriority; 0 before it runs
};

using Clock = std::chrono::steady_clock;

// A point in a stream that an event was recorded at. It stays what it is when the event is recorded again.
struct Point {
  std::shared_ptr<Stream> stream;  // NULL: complete from the start
  uint64_t number = 0;  // of the task that writes `when`
  Clock::time_point when;  // valid once Done

  bool Done() const { return stream == nullptr || stream->Reached(number); }
};

class Event {
 public:
  Event(int device_index, uint32_t event_flags) : device(device_index), flags(event_flags) {}

  const int device;
  const uint32_t flags;

  void Record(std::shared_ptr<const Point> point) {
    const std::lock_guard lock(mutex_);
    point_ = std::move(point);
  }
  // NULL when never recorded.
  std::shared_ptr<const Point> Last() const {
    const std::lock_guard lock(mutex_);
    return point_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Point> point_;
};

std::shared_ptr<Stream> FindStream(flagos_stream_t handle);
std::shared_ptr<Event> FindEvent(flagos_event_t handle);
flagos_status_t BadStream(const char* function);
flagos_status_t BadEvent(const char* function);
flagos_status_t RefuseOnWorker(const char* function);

}  // namespace flagos_host
