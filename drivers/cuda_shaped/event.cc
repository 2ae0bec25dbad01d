// SPDX-License-Identifier: Apache-2.0
#include "cuda_shaped/shared.h"

namespace flagos_cuda_shaped {
namespace {

constexpr uint32_t kRecorded = 1u << 31;  // beside the FLAGOS_EVENT_* flags

template <class Body>
flagos_status_t OnEvent(const char* function, flagos_event_t handle, Body&& body) {
  return Guarded(function, [&]() -> flagos_status_t {
    const Handle event = FindEvent(handle);
    if (!event.valid) return BadEvent(function);
    return OnDevice(function, event.device, [&](const Where& where) { return body(where, event); });
  });
}

}  // namespace

HandleTable& Events() {
  static auto* const table = new HandleTable(2);
  return *table;
}

flagos_status_t BadEvent(const char* function) {
  return Fail(FLAGOS_INVALID_HANDLE, function, -1, "the event is NULL, destroyed or not of this driver");
}

flagos_status_t EventCreate(int32_t device, uint32_t flags, flagos_event_t* out_event) {
  return OnDevice("event_create", device, [&](const Where& where) -> flagos_status_t {
    constexpr uint32_t kKnown = FLAGOS_EVENT_TIMING | FLAGOS_EVENT_BLOCKING;
    if ((flags & ~kKnown) != 0) {
      return Fail(FLAGOS_INVALID_VALUE, where.function, device, "unknown flags %#x", flags);
    }
    const unsigned native_flags = ((flags & FLAGOS_EVENT_TIMING) != 0 ? 0 : kEventDisableTiming) |
                                  ((flags & FLAGOS_EVENT_BLOCKING) != 0 ? kEventBlockingSync : 0);
    VendorEvent native = nullptr;
    const flagos_status_t status = CUDA_SHAPED_RT(where, EventCreateWithFlags, &native, native_flags);
    if (status != FLAGOS_OK) return status;
    try {
      *out_event = reinterpret_cast<flagos_event_t>(Events().Insert(native, device, flags));
    } catch (...) {
      Rt().EventDestroy(native);
      throw;
    }
    return FLAGOS_OK;
  });
}

flagos_status_t EventDestroy(flagos_event_t handle) {
  return Guarded("event_destroy", [&]() -> flagos_status_t {
    const Handle event = Events().Take(reinterpret_cast<uintptr_t>(handle));
    if (!event.valid) return BadEvent("event_destroy");
    return OnDevice("event_destroy", event.device,
                    [&](const Where& where) { return CUDA_SHAPED_RT(where, EventDestroy, event.native); });
  });
}

flagos_status_t EventRecord(flagos_event_t handle, flagos_stream_t stream_handle) {
  return OnEvent("event_record", handle, [&](const Where& where, const Handle& event) {
    const Handle stream = FindStream(stream_handle);
    if (stream_handle != nullptr && !stream.valid) return BadStream("event_record");
    if (stream.valid && stream.device != event.device) {
      return Fail(FLAGOS_INVALID_HANDLE, where.function, event.device,
                  "an event of device %d cannot be recorded on a stream of device %d", event.device, stream.device);
    }
    VendorStream queue = nullptr;
    flagos_status_t status = QueueFor(where, stream, &queue);
    if (status == FLAGOS_OK) status = CUDA_SHAPED_RT(where, EventRecord, event.native, queue);
    if (status != FLAGOS_OK) return status;
    Events().Mark(reinterpret_cast<uintptr_t>(handle), kRecorded);
    return FinishCall(where, stream, queue);
  });
}

flagos_status_t EventQuery(flagos_event_t handle) {
  return OnEvent("event_query", handle, [](const Where& where, const Handle& event) {
    return CUDA_SHAPED_RT(where, EventQuery, event.native);
  });
}

flagos_status_t EventSync(flagos_event_t handle) {
  return OnEvent("event_sync", handle, [](const Where& where, const Handle& event) {
    return CUDA_SHAPED_RT(where, EventSynchronize, event.native);
  });
}

flagos_status_t EventElapsed(flagos_event_t start_handle, flagos_event_t end_handle, float* out_ms) {
  return OnEvent("event_elapsed", start_handle, [&](const Where& where, const Handle& start) {
    const Handle end = FindEvent(end_handle);
    if (!end.valid) return BadEvent("event_elapsed");
    for (const Handle* event : {&start, &end}) {
      if ((event->flags & FLAGOS_EVENT_TIMING) == 0) {
        return Fail(FLAGOS_INVALID_HANDLE, where.function, event->device, "an event was made without timing");
      }
      if ((event->flags & kRecorded) == 0) {
        return Fail(FLAGOS_INVALID_HANDLE, where.function, event->device, "an event was never recorded");
      }
    }
    if (end.device != start.device) {
      return Fail(FLAGOS_INVALID_HANDLE, where.function, start.device, "the events are of devices %d and %d",
                  start.device, end.device);
    }
    float ms = 0;
    const flagos_status_t status = CUDA_SHAPED_RT(where, EventElapsedTime, &ms, start.native, end.native);
    if (status == FLAGOS_OK) *out_ms = ms;
    return status;
  });
}

}  // namespace flagos_cuda_shaped
