// SPDX-License-Identifier: Apache-2.0
#include "host/stream.h"

namespace flagos_host {
namespace {

HandleTable<Event, flagos_event_t>& Handles() {
  static auto* const table = new HandleTable<Event, flagos_event_t>;
  return *table;
}

}  // namespace

uint64_t Event::Record() {
  const std::lock_guard lock(mutex_);
  return ++recorded_;
}

void Event::Complete(uint64_t generation) {
  const std::lock_guard lock(mutex_);
  if (generation <= completed_) return;
  completed_ = generation;
  when_ = Clock::now();
  done_.notify_all();
}

uint64_t Event::Recorded() const {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

bool Event::Done() const {
  const std::lock_guard lock(mutex_);
  return completed_ == recorded_;
}

void Event::Wait(uint64_t generation) const {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return completed_ >= generation; });
}

flagos_status_t Event::When(Clock::time_point* out) const {
  const std::lock_guard lock(mutex_);
  if (recorded_ == 0) return FLAGOS_INVALID_HANDLE;
  if (completed_ != recorded_) return FLAGOS_NOT_READY;
  *out = when_;
  return FLAGOS_OK;
}

std::shared_ptr<Event> FindEvent(flagos_event_t handle) { return Handles().Find(handle); }

flagos_status_t BadEvent(const char* function) {
  return Fail(FLAGOS_INVALID_HANDLE, function, -1, "the event is NULL, destroyed or not of this driver");
}

flagos_status_t EventCreate(int32_t device, uint32_t flags, flagos_event_t* out_event) {
  return Guarded("event_create", [&] {
    if (const flagos_status_t status = CheckDevice("event_create", device); status != FLAGOS_OK) return status;
    constexpr uint32_t kKnown = FLAGOS_EVENT_TIMING | FLAGOS_EVENT_BLOCKING;
    if ((flags & ~kKnown) != 0) {
      return Fail(FLAGOS_INVALID_VALUE, "event_create", device, "unknown flags %#x", flags);
    }
    *out_event = Handles().Insert(std::make_shared<Event>(device, flags));
    return FLAGOS_OK;
  });
}

flagos_status_t EventDestroy(flagos_event_t handle) {
  return Guarded("event_destroy", [&] {
    // Tasks that still refer to the event hold it.
    return Handles().Take(handle) != nullptr ? FLAGOS_OK : BadEvent("event_destroy");
  });
}

flagos_status_t EventRecord(flagos_event_t handle, flagos_stream_t stream_handle) {
  return Guarded("event_record", [&] {
    const auto event = FindEvent(handle);
    if (event == nullptr) return BadEvent("event_record");
    const auto stream = stream_handle != nullptr ? FindStream(stream_handle) : nullptr;
    if (stream == nullptr && stream_handle != nullptr) return BadStream("event_record");
    if (stream != nullptr && stream->device != event->device) {
      return Fail(FLAGOS_INVALID_HANDLE, "event_record", event->device,
                  "an event of device %d cannot be recorded on a stream of device %d", event->device, stream->device);
    }
    const uint64_t generation = event->Record();
    if (stream == nullptr || stream->Idle()) {
      event->Complete(generation);
    } else {
      stream->Submit([event, generation] { event->Complete(generation); });
    }
    return FLAGOS_OK;
  });
}

flagos_status_t EventQuery(flagos_event_t handle) {
  return Guarded("event_query", [&] {
    const auto event = FindEvent(handle);
    if (event == nullptr) return BadEvent("event_query");
    return event->Done() ? FLAGOS_OK : FLAGOS_NOT_READY;
  });
}

flagos_status_t EventSync(flagos_event_t handle) {
  return Guarded("event_sync", [&] {
    const auto event = FindEvent(handle);
    if (event == nullptr) return BadEvent("event_sync");
    if (OnWorker()) return RefuseOnWorker("event_sync");
    event->Wait(event->Recorded());
    return FLAGOS_OK;
  });
}

flagos_status_t EventElapsed(flagos_event_t start_handle, flagos_event_t end_handle, float* out_ms) {
  return Guarded("event_elapsed", [&] {
    const auto start = FindEvent(start_handle);
    const auto end = FindEvent(end_handle);
    if (start == nullptr || end == nullptr) return BadEvent("event_elapsed");
    Event::Clock::time_point from;
    Event::Clock::time_point to;
    flagos_status_t pending = FLAGOS_OK;
    for (const auto& [event, out] : {std::pair{start.get(), &from}, std::pair{end.get(), &to}}) {
      if ((event->flags & FLAGOS_EVENT_TIMING) == 0) {
        return Fail(FLAGOS_INVALID_HANDLE, "event_elapsed", event->device, "an event was made without timing");
      }
      const flagos_status_t status = event->When(out);
      if (status == FLAGOS_INVALID_HANDLE) {
        return Fail(status, "event_elapsed", event->device, "an event was never recorded");
      }
      if (status != FLAGOS_OK) pending = status;
    }
    if (pending != FLAGOS_OK) return pending;
    *out_ms = std::chrono::duration<float, std::milli>(to - from).count();
    return FLAGOS_OK;
  });
}

}  // namespace flagos_host
