// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <mutex>
#include <string>

#include "runtime/stream.h"

namespace torch_fl::runtime {

using Clock = std::chrono::steady_clock;

class Event {
 public:
  const int device = 0;
  const bool timing = false;
  const flagos_event_t handle = nullptr;

  // Only for devices that cannot time: when the host recorded the event.
  std::mutex mutex{};
  Clock::time_point host_time{};
  bool recorded = false;
};

namespace {

bool DeviceTimes() {
  return Driver().event_elapsed != nullptr && (GetDriverInfo().capabilities & FLAGOS_CAP_EVENT_TIMING) != 0;
}

}  // namespace

Event* CreateEvent(int device, bool timing, bool blocking) {
  CheckNotForked("event_create");
  CheckDevice(device, "event_create");
  MarkContext(device);
  uint32_t flags = FLAGOS_EVENT_DEFAULT;
  if (timing) flags |= FLAGOS_EVENT_TIMING;
  if (blocking) flags |= FLAGOS_EVENT_BLOCKING;
  flagos_event_t handle = nullptr;
  CheckStatus(Driver().event_create(device, flags, &handle), "event_create", device);
  return new Event{device, timing, handle};
}

void DestroyEvent(Event* event) noexcept {
  // In a child or at exit the driver may hold locks or be gone: the memory is left to the process's end.
  if (event == nullptr || Forked() || Exiting()) return;
  Driver().event_destroy(event->handle);  // fails only for a foreign handle, which this is not
  delete event;
}

int EventDevice(const Event* event) noexcept { return event->device; }

void RecordEvent(Event* event, Stream* stream) {
  CheckNotForked("event_record");
  CheckStatus(Driver().event_record(event->handle, stream->Handle()), "event_record", event->device);
  if (event->timing && !DeviceTimes()) {
    const std::lock_guard lock(event->mutex);
    event->host_time = Clock::now();
    event->recorded = true;
  }
}

void StreamWaitEvent(Stream* stream, Event* event) {
  CheckNotForked("stream_wait_event");
  CheckStatus(Driver().stream_wait(stream->Handle(), event->handle), "stream_wait", stream->device());
  stream->MarkSubmitted();
}

bool QueryEvent(Event* event) {
  CheckNotForked("event_query");
  const flagos_status_t status = Driver().event_query(event->handle);
  if (status == FLAGOS_NOT_READY) return false;
  CheckStatus(status, "event_query", event->device);
  return true;
}

void SynchronizeEvent(Event* event) {
  CheckNotForked("event_synchronize");
  if (QueryEvent(event)) return;
  Count(g_counters.event_syncs);
  CheckStatus(Driver().event_sync(event->handle), "event_sync", event->device);
}

double ElapsedMs(Event* start, Event* end) {
  CheckNotForked("event_elapsed_time");
  if (!start->timing || !end->timing) {
    throw Error(FLAGOS_INVALID_HANDLE,
                "event_elapsed_time: both events must be made with enable_timing=True before they are recorded");
  }
  if (DeviceTimes()) {
    float ms = 0;
    const flagos_status_t status = Driver().event_elapsed(start->handle, end->handle, &ms);
    if (status == FLAGOS_NOT_READY) {
      throw Error(status, "event_elapsed_time: an event is still pending; call end_event.synchronize() first");
    }
    CheckStatus(status, "event_elapsed", end->device);
    return ms;
  }
  const std::scoped_lock lock(start->mutex, end->mutex);
  if (!start->recorded || !end->recorded) {
    throw Error(FLAGOS_INVALID_HANDLE, "event_elapsed_time: both events must be recorded first");
  }
  return std::chrono::duration<double, std::milli>(end->host_time - start->host_time).count();
}

}  // namespace torch_fl::runtime
