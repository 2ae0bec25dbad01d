// SPDX-License-Identifier: Apache-2.0
#include "host/stream.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <thread>

namespace flagos_host {
namespace {

constinit thread_local bool t_on_worker = false;

// Leaked with the rest of the state: workers run until the process is gone.
HandleTable<Stream, flagos_stream_t>& Handles() {
  static auto* const table = new HandleTable<Stream, flagos_stream_t>;
  return *table;
}

// Every stream whose worker may still run, destroyed handles included.
struct LiveStreams {
  std::mutex mutex;
  std::vector<std::weak_ptr<Stream>> streams;
};

LiveStreams& Live() {
  static auto* const live = new LiveStreams;
  return *live;
}

void WaitForStreams(int device) {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    LiveStreams& live = Live();
    const std::lock_guard lock(live.mutex);
    for (const auto& weak : live.streams) {
      if (auto stream = weak.lock(); stream != nullptr && (device < 0 || stream->device == device)) {
        streams.push_back(std::move(stream));
      }
    }
  }
  for (const auto& stream : streams) stream->Wait();
}

}  // namespace

void Stream::Submit(Task task) {
  const std::lock_guard lock(mutex_);
  if (!started_) Start();
  queue_.push_back(std::move(task));
  ++submitted_;
  work_.notify_one();
}

bool Stream::Idle() const {
  const std::lock_guard lock(mutex_);
  return completed_ == submitted_;
}

void Stream::Wait() {
  std::unique_lock lock(mutex_);
  const uint64_t target = submitted_;
  done_.wait(lock, [&] { return completed_ >= target; });
}

void Stream::Finish() {
  const std::lock_guard lock(mutex_);
  finishing_ = true;
  work_.notify_one();
}

void Stream::Start() {
  // The program's signals belong to its own threads; a fault of the worker itself cannot be blocked anyway.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([self = shared_from_this()] { self->Work(); }).detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  started_ = true;
}

void Stream::Work() {
  t_on_worker = true;
  pthread_setname_np(pthread_self(), "flagos-stream");
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return !queue_.empty() || finishing_; });
    if (queue_.empty()) return;
    Task task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds is released before the work counts as done
    lock.lock();
    ++completed_;
    done_.notify_all();
  }
}

bool OnWorker() { return t_on_worker; }

void WaitForAllStreams() { WaitForStreams(-1); }

std::shared_ptr<Stream> FindStream(flagos_stream_t handle) { return Handles().Find(handle); }

flagos_status_t BadStream(const char* function) {
  return Fail(FLAGOS_INVALID_HANDLE, function, -1, "the stream is NULL, destroyed or not of this driver");
}

flagos_status_t RefuseOnWorker(const char* function) {
  return Fail(FLAGOS_INVALID_VALUE, function, -1, "called from a host function, which may not wait");
}

flagos_status_t DeviceSync(int32_t device) {
  return Guarded("device_sync", [&] {
    if (const flagos_status_t status = CheckDevice("device_sync", device); status != FLAGOS_OK) return status;
    if (OnWorker()) return RefuseOnWorker("device_sync");
    WaitForStreams(device);
    return FLAGOS_OK;
  });
}

flagos_status_t StreamCreate(int32_t device, uint32_t flags, int32_t, flagos_stream_t* out_stream) {
  return Guarded("stream_create", [&] {
    if (const flagos_status_t status = CheckDevice("stream_create", device); status != FLAGOS_OK) return status;
    if (flags != FLAGOS_STREAM_DEFAULT) {
      return Fail(FLAGOS_INVALID_VALUE, "stream_create", device, "unknown flags %#x", flags);
    }
    ArmFork();
    auto stream = std::make_shared<Stream>(device);
    {
      LiveStreams& live = Live();
      const std::lock_guard lock(live.mutex);
      std::erase_if(live.streams, [](const auto& weak) { return weak.expired(); });
      live.streams.push_back(stream);
    }
    *out_stream = Handles().Insert(std::move(stream));
    return FLAGOS_OK;
  });
}

flagos_status_t StreamDestroy(flagos_stream_t handle) {
  return Guarded("stream_destroy", [&] {
    const auto stream = Handles().Take(handle);
    if (stream == nullptr) return BadStream("stream_destroy");
    stream->Finish();
    return FLAGOS_OK;
  });
}

flagos_status_t StreamQuery(flagos_stream_t handle) {
  return Guarded("stream_query", [&] {
    const auto stream = FindStream(handle);
    if (stream == nullptr) return BadStream("stream_query");
    return stream->Idle() ? FLAGOS_OK : FLAGOS_NOT_READY;
  });
}

flagos_status_t StreamSync(flagos_stream_t handle) {
  return Guarded("stream_sync", [&] {
    const auto stream = FindStream(handle);
    if (stream == nullptr) return BadStream("stream_sync");
    if (OnWorker()) return RefuseOnWorker("stream_sync");
    stream->Wait();
    return FLAGOS_OK;
  });
}

flagos_status_t StreamWait(flagos_stream_t handle, flagos_event_t event_handle) {
  return Guarded("stream_wait", [&] {
    const auto stream = FindStream(handle);
    if (stream == nullptr) return BadStream("stream_wait");
    const auto event = FindEvent(event_handle);
    if (event == nullptr) return BadEvent("stream_wait");
    if (event->Done()) return FLAGOS_OK;
    stream->Submit([event, generation = event->Recorded()] { event->Wait(generation); });
    return FLAGOS_OK;
  });
}

flagos_status_t StreamHostFunc(flagos_stream_t handle, flagos_host_func_t func, void* user_data) {
  return Guarded("stream_host_func", [&] {
    const auto stream = FindStream(handle);
    if (stream == nullptr) return BadStream("stream_host_func");
    if (func == nullptr) return Fail(FLAGOS_INVALID_VALUE, "stream_host_func", stream->device, "func is NULL");
    stream->Submit([func, user_data] { func(user_data); });
    return FLAGOS_OK;
  });
}

}  // namespace flagos_host
