// SPDX-License-Identifier: Apache-2.0
#include "host/stream.h"

namespace flagos_host {
namespace {

HandleTable<Event, flagos_event_t, 8>& Handles() {
  static auto* const table = new HandleTable<Event, flagos_event_t, 8>;
  return *table;
}

}  // namespace

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
    auto point = std::make_shared<Point>();
    if (stream == nullptr) {
      if (OnWorker()) return RefuseOnWorker("event_record");
      WaitForStreams(event->device);
      point->when = Clock::now();
    } else if (stream->Idle()) {
      point->when = Clock::now();
    } else {
      point->number = stream->Submit([point] { point->when = Clock::now(); });
      point->stream = stream;
    }
    event->Record(std::move(point));
    return FLAGOS_OK;
  });
}

flagos_status_t EventQuery(flagos_event_t handle) {
  return Guarded("event_query", [&] {
    const auto event = FindEvent(handle);
    if (event == nullptr) return BadEvent("event_query");
    const auto point = event->Last();
    if (point == nullptr || point->Done()) return FLAGOS_OK;
    point->stream->Release(point->number);  // whoever asks again gets an end
    return FLAGOS_NOT_READY;
  });
}

flagos_status_t EventSync(flagos_event_t handle) {
  return Guarded("event_sync", [&] {
    const auto event = FindEvent(handle);
    if (event == nullptr) return BadEvent("event_sync");
    if (OnWorker()) return RefuseOnWorker("event_sync");
    const auto point = event->Last();
    if (point != nullptr && point->stream != nullptr) point->stream->WaitFor(point->number);
    return FLAGOS_OK;
  });
}

flagos_status_t EventElapsed(flagos_event_t start_handle, flagos_event_t end_handle, float* out_ms) {
  return Guarded("event_elapsed", [&] {
    const auto start = FindEvent(start_handle);
    const auto end = FindEvent(end_handle);
    if (start == nullptr || end == nullptr) return BadEvent("event_elapsed");
    if (start->device != end->device) {
      return Fail(FLAGOS_INVALID_HANDLE, "event_elapsed", end->device, "the events belong to devices %d and %d",
                  start->device, end->device);
    }
    const auto from = start->Last();
    const auto to = end->Last();
    bool pending = false;
    for (const auto& [event, point] : {std::pair{start.get(), from.get()}, std::pair{end.get(), to.get()}}) {
      if ((event->flags & FLAGOS_EVENT_TIMING) == 0) {
        return Fail(FLAGOS_INVALID_HANDLE, "event_elapsed", event->device, "an event was made without timing");
      }
      if (point == nullptr) {
        return Fail(FLAGOS_INVALID_HANDLE, "event_elapsed", event->device, "an event was never recorded");
      }
      if (point->Done()) continue;
      point->stream->Release(point->number);
      pending = true;
    }
    if (pending) return FLAGOS_NOT_READY;
    *out_ms = std::chrono::duration<float, std::milli>(to->when - from->when).count();
    return FLAGOS_OK;
  });
}

}  // namespace flagos_host
