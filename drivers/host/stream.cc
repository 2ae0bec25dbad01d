// SPDX-License-Identifier: Apache-2.0
#include "host/stream.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace flagos_host {
namespace {

constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -1;
constexpr int kGiveWayNice = 5;  // added to what the program runs with; a third of the share of a busy processor

constinit thread_local bool t_on_worker = false;

// Leaked with the rest of the state: workers run until the process is gone.
HandleTable<Stream, flagos_stream_t, 0>& Handles() {
  static auto* const table = new HandleTable<Stream, flagos_stream_t, 0>;
  return *table;
}

// Every stream whose worker may still run, destroyed handles included.
struct LiveStreams {
  std::mutex mutex;
  std::vector<std::weak_ptr<Stream>> streams;
  bool priorities = false;  // somebody made a stream above the least priority
};

LiveStreams& Live() {
  static auto* const live = new LiveStreams;
  return *live;
}

void AddLive(const std::shared_ptr<Stream>& stream) {
  LiveStreams& live = Live();
  const std::lock_guard lock(live.mutex);
  std::erase_if(live.streams, [](const auto& weak) { return weak.expired(); });
  live.streams.push_back(stream);
  // Programs that use no priorities run as if there were none.
  const bool first = stream->priority < kLeastPriority && !live.priorities;
  if (first) live.priorities = true;
  if (!live.priorities) return;
  for (const auto& weak : live.streams) {
    const auto other = weak.lock();
    if (other != nullptr && other->priority == kLeastPriority && (first || other == stream)) other->GiveWay();
  }
}

}  // namespace

uint64_t Stream::Submit(Task task) {
  const std::lock_guard lock(mutex_);
  if (!started_) Start();
  queue_.push_back(std::move(task));
  DeviceOf(device).pending.fetch_add(1, std::memory_order_relaxed);
  ++submitted_;
  if (completed_ < Limit()) work_.notify_one();
  return submitted_;
}

uint64_t Stream::Limit() const { return TheState().config.lazy && !finishing_ ? released_ : submitted_; }

bool Stream::Idle() const {
  const std::lock_guard lock(mutex_);
  return completed_ == submitted_;
}

bool Stream::Reached(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return completed_ >= number;
}

void Stream::ReleaseLocked(uint64_t number) {
  if (number <= released_ || !TheState().config.lazy) return;
  released_ = number;
  work_.notify_one();
}

void Stream::Release(uint64_t number) {
  const std::lock_guard lock(mutex_);
  ReleaseLocked(number);
}

void Stream::Release() {
  const std::lock_guard lock(mutex_);
  ReleaseLocked(submitted_);
}

void Stream::WaitFor(uint64_t number) {
  std::unique_lock lock(mutex_);
  ReleaseLocked(number);
  done_.wait(lock, [&] { return completed_ >= number; });
}

void Stream::Wait() {
  std::unique_lock lock(mutex_);
  const uint64_t number = submitted_;
  ReleaseLocked(number);
  done_.wait(lock, [&] { return completed_ >= number; });
}

void Stream::Finish() {
  const std::lock_guard lock(mutex_);
  finishing_ = true;
  work_.notify_one();
}

bool Stream::Finishing() const {
  const std::lock_guard lock(mutex_);
  return finishing_;
}

void Stream::GiveWay() {
  const std::lock_guard lock(mutex_);
  if (gives_way_) return;
  gives_way_ = true;
  // Failure leaves the worker as fast as the others: an order among threads, not a promise.
  if (thread_ != 0) {
    const auto thread = static_cast<id_t>(thread_);
    setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + kGiveWayNice);
  }
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
  thread_ = gettid();
  if (gives_way_) setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kGiveWayNice);
  for (;;) {
    work_.wait(lock, [&] { return completed_ < Limit() || (finishing_ && queue_.empty()); });
    if (queue_.empty()) break;
    Task task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds is released before the work counts as done
    lock.lock();
    ++completed_;
    DeviceOf(device).pending.fetch_sub(1, std::memory_order_release);
    done_.notify_all();
  }
  // A task submitted by a thread that found the handle just before it was destroyed starts another worker.
  thread_ = 0;
  started_ = false;
}

bool OnWorker() { return t_on_worker; }

void WaitForStreams(int device) {
  // Most calls come when nothing is queued.
  if (DeviceOf(device).pending.load(std::memory_order_acquire) == 0) return;
  std::vector<std::shared_ptr<Stream>> streams;
  {
    LiveStreams& live = Live();
    const std::lock_guard lock(live.mutex);
    for (const auto& weak : live.streams) {
      if (auto stream = weak.lock(); stream != nullptr && stream->device == device)
        streams.push_back(std::move(stream));
    }
  }
  for (const auto& stream : streams) stream->Release();
  for (const auto& stream : streams) stream->Wait();
}

void WaitForAllStreams() {
  for (int device = 0; device < TheState().config.devices; ++device) WaitForStreams(device);
}

std::shared_ptr<Stream> FindStream(flagos_stream_t handle) {
  auto stream = Handles().Find(handle);
  // A wrapper may outlive the stream.
  return stream != nullptr && !stream->Finishing() ? stream : nullptr;
}

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

flagos_status_t StreamPriorityRange(int32_t device, int32_t* out_least, int32_t* out_greatest) {
  return Guarded("stream_priority_range", [&] {
    if (const flagos_status_t status = CheckDevice("stream_priority_range", device); status != FLAGOS_OK) return status;
    *out_least = kLeastPriority;
    *out_greatest = kGreatestPriority;
    return FLAGOS_OK;
  });
}

flagos_status_t StreamCreate(int32_t device, uint32_t flags, int32_t priority, flagos_stream_t* out_stream) {
  return Guarded("stream_create", [&] {
    if (const flagos_status_t status = CheckDevice("stream_create", device); status != FLAGOS_OK) return status;
    if (flags != FLAGOS_STREAM_DEFAULT) {
      return Fail(FLAGOS_INVALID_VALUE, "stream_create", device, "unknown flags %#x", flags);
    }
    ArmFork();
    auto stream = std::make_shared<Stream>(device, std::clamp(priority, kGreatestPriority, kLeastPriority));
    AddLive(stream);
    stream->native = Handles().Insert(stream);
    *out_stream = stream->native;
    return FLAGOS_OK;
  });
}

flagos_status_t StreamDestroy(flagos_stream_t handle) {
  return Guarded("stream_destroy", [&] {
    const auto stream = Handles().Take(handle);
    if (stream == nullptr) return BadStream("stream_destroy");
    if (stream->native == handle) stream->Finish();
    return FLAGOS_OK;
  });
}

void* StreamNative(flagos_stream_t handle) {
  void* native = nullptr;
  Guarded("stream_native", [&] {
    const auto stream = FindStream(handle);
    if (stream == nullptr) return BadStream("stream_native");
    native = stream->native;
    return FLAGOS_OK;
  });
  return native;
}

flagos_status_t StreamWrap(int32_t device, void* native, flagos_stream_t* out_stream) {
  return Guarded("stream_wrap", [&] {
    if (const flagos_status_t status = CheckDevice("stream_wrap", device); status != FLAGOS_OK) return status;
    const auto stream = FindStream(static_cast<flagos_stream_t>(native));
    if (stream == nullptr) return BadStream("stream_wrap");
    if (stream->device != device) {
      return Fail(FLAGOS_INVALID_HANDLE, "stream_wrap", device, "the stream %p belongs to device %d, not %d", native,
                  stream->device, device);
    }
    *out_stream = Handles().Insert(stream);
    return FLAGOS_OK;
  });
}

flagos_status_t StreamQuery(flagos_stream_t handle) {
  return Guarded("stream_query", [&] {
    const auto stream = FindStream(handle);
    if (stream == nullptr) return BadStream("stream_query");
    if (stream->Idle()) return FLAGOS_OK;
    stream->Release();  // whoever asks again gets an end
    return FLAGOS_NOT_READY;
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
    const auto point = event->Last();
    if (point == nullptr || point->stream == stream || point->Done()) return FLAGOS_OK;
    stream->Submit([point] { point->stream->WaitFor(point->number); });
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
