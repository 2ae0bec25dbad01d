// SPDX-License-Identifier: Apache-2.0
// validate: streams, events, host functions, and what each call says about order.
#include <memory>
#include <optional>

#include "runtime/layers/validate.h"

namespace torch_fl::runtime::layers::validate {
namespace {

constinit thread_local bool t_in_host_function = false;

void AddStream(int device, flagos_stream_t stream, const void* native) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  StreamState added{device, 0, 0, native};
  const StreamState* same = nullptr;
  for (const auto& [handle, known] : state.streams) {
    // Without stream_native the handle itself is what others take as a stream.
    const bool matches = known.native == native || (g_inner->stream_native == nullptr && handle == native);
    if (native != nullptr && known.device == device && matches) same = &known;
  }
  if (same != nullptr) {
    state.order.ShareStream(same->slot);
    added.slot = same->slot;
    added.number = same->number;
  } else {
    added.slot = state.order.OpenStream(device);
    added.number = ++state.streams_made;
  }
  state.streams.insert_or_assign(stream, added);
}

flagos_status_t StreamCreate(int32_t device, uint32_t flags, int32_t priority, flagos_stream_t* out) {
  const auto forward = [&] { return g_inner->stream_create(device, flags, priority, out); };
  return Checked("stream_create", forward, [&] {
    const flagos_status_t status = forward();
    if (status == FLAGOS_OK) AddStream(device, *out, nullptr);
    return status;
  });
}

flagos_status_t StreamWrap(int32_t device, void* native, flagos_stream_t* out) {
  const auto forward = [&] { return g_inner->stream_wrap(device, native, out); };
  return Checked("stream_wrap", forward, [&] {
    const flagos_status_t status = forward();
    if (status == FLAGOS_OK) AddStream(device, *out, native);
    return status;
  });
}

void* StreamNative(flagos_stream_t stream) {
  void* native = g_inner->stream_native(stream);
  if (InForkedChild()) return native;
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  if (const auto found = state.streams.find(stream); found != state.streams.end()) found->second.native = native;
  return native;
}

flagos_status_t StreamDestroy(flagos_stream_t stream) {
  const auto forward = [&] { return g_inner->stream_destroy(stream); };
  return Checked("stream_destroy", forward, [&] {
    State& state = TheState();
    StreamState gone;
    {
      const std::lock_guard lock(state.mutex);
      const StreamState* found = state.FindStream("stream_destroy", stream);
      if (found == nullptr) return FLAGOS_INVALID_HANDLE;
      gone = *found;
      state.streams.erase(stream);
    }
    const flagos_status_t status = forward();
    const std::lock_guard lock(state.mutex);
    if (status == FLAGOS_OK) {
      state.order.CloseStream(gone.slot);
    } else {
      state.streams.emplace(stream, gone);
    }
    return status;
  });
}

// What is queued on the stream now; nothing when the handle is bad.
std::optional<Clock> Queued(const char* entry, flagos_stream_t stream) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  const StreamState* found = state.FindStream(entry, stream);
  if (found == nullptr) return std::nullopt;
  return state.order.Now(found->slot);
}

void HostSaw(const Clock& clock) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  state.order.HostSaw(clock);
}

flagos_status_t StreamQuery(flagos_stream_t stream) {
  const auto forward = [&] { return g_inner->stream_query(stream); };
  return Checked("stream_query", forward, [&] {
    const auto queued = Queued("stream_query", stream);
    if (!queued) return FLAGOS_INVALID_HANDLE;
    const flagos_status_t status = forward();
    if (status == FLAGOS_OK) HostSaw(*queued);
    return status;
  });
}

flagos_status_t StreamSync(flagos_stream_t stream) {
  const auto forward = [&] { return g_inner->stream_sync(stream); };
  return Checked("stream_sync", forward, [&] {
    const auto queued = Queued("stream_sync", stream);
    if (!queued) return FLAGOS_INVALID_HANDLE;
    const flagos_status_t status = forward();
    if (status == FLAGOS_OK) HostSaw(*queued);
    return status;
  });
}

flagos_status_t DeviceSync(int32_t device) {
  const auto forward = [&] { return g_inner->device_sync(device); };
  return Checked("device_sync", forward, [&] {
    State& state = TheState();
    Clock queued;
    {
      const std::lock_guard lock(state.mutex);
      queued = state.order.OfDevices(device);
    }
    const flagos_status_t status = forward();
    if (status == FLAGOS_OK) HostSaw(queued);
    return status;
  });
}

flagos_status_t StreamWait(flagos_stream_t stream, flagos_event_t event) {
  const auto forward = [&] { return g_inner->stream_wait(stream, event); };
  return Checked("stream_wait", forward, [&] {
    State& state = TheState();
    Clock clock;
    {
      const std::lock_guard lock(state.mutex);
      if (state.FindStream("stream_wait", stream) == nullptr) return FLAGOS_INVALID_HANDLE;
      const EventState* found = state.FindEvent("stream_wait", event);
      if (found == nullptr) return FLAGOS_INVALID_HANDLE;
      clock = found->clock;
    }
    const flagos_status_t status = forward();
    if (status != FLAGOS_OK) return status;
    const std::lock_guard lock(state.mutex);
    if (const auto found = state.streams.find(stream); found != state.streams.end()) {
      state.order.StreamWaits(found->second.slot, clock);
    }
    return status;
  });
}

// ---- Host functions: they may not call the driver, and then this thread tells.

struct HostFunction {
  flagos_host_func_t func;
  void* user_data;
};

void RunHostFunction(void* data) {
  const std::unique_ptr<HostFunction> function(static_cast<HostFunction*>(data));
  t_in_host_function = true;
  function->func(function->user_data);
  t_in_host_function = false;
}

flagos_status_t StreamHostFunc(flagos_stream_t stream, flagos_host_func_t func, void* user_data) {
  const auto forward = [&] { return g_inner->stream_host_func(stream, func, user_data); };
  return Checked("stream_host_func", forward, [&] {
    {
      State& state = TheState();
      const std::lock_guard lock(state.mutex);
      const StreamState* found = state.FindStream("stream_host_func", stream);
      if (found == nullptr) return FLAGOS_INVALID_HANDLE;
      if (func == nullptr) {
        return Misuse(FLAGOS_INVALID_VALUE, "stream_host_func", found->device, "the function is NULL");
      }
    }
    auto function = std::make_unique<HostFunction>(HostFunction{func, user_data});
    const flagos_status_t status = g_inner->stream_host_func(stream, &RunHostFunction, function.get());
    // NOLINTNEXTLINE(bugprone-unused-return-value): the driver's thread owns it from here on
    if (status == FLAGOS_OK) static_cast<void>(function.release());
    return status;
  });
}

// ---- Events

flagos_status_t EventCreate(int32_t device, uint32_t flags, flagos_event_t* out) {
  const auto forward = [&] { return g_inner->event_create(device, flags, out); };
  return Checked("event_create", forward, [&] {
    const flagos_status_t status = forward();
    if (status != FLAGOS_OK) return status;
    State& state = TheState();
    const std::lock_guard lock(state.mutex);
    state.events.insert_or_assign(*out, EventState{device, flags, 0, {}});
    return status;
  });
}

flagos_status_t EventDestroy(flagos_event_t event) {
  const auto forward = [&] { return g_inner->event_destroy(event); };
  return Checked("event_destroy", forward, [&] {
    State& state = TheState();
    decltype(state.events)::node_type gone;
    {
      const std::lock_guard lock(state.mutex);
      if (state.FindEvent("event_destroy", event) == nullptr) return FLAGOS_INVALID_HANDLE;
      gone = state.events.extract(event);
    }
    const flagos_status_t status = forward();
    if (status == FLAGOS_OK) return status;
    const std::lock_guard lock(state.mutex);
    state.events.insert(std::move(gone));
    return status;
  });
}

flagos_status_t EventRecord(flagos_event_t event, flagos_stream_t stream) {
  const auto forward = [&] { return g_inner->event_record(event, stream); };
  return Checked("event_record", forward, [&] {
    State& state = TheState();
    Clock clock;
    {
      const std::lock_guard lock(state.mutex);
      const EventState* found = state.FindEvent("event_record", event);
      if (found == nullptr) return FLAGOS_INVALID_HANDLE;
      if (stream == nullptr) {
        clock = state.order.OfDevices(found->device);  // synchronous and ordered
      } else {
        const StreamState* on = state.FindStream("event_record", stream);
        if (on == nullptr) return FLAGOS_INVALID_HANDLE;
        if (on->device != found->device) {
          return Misuse(FLAGOS_INVALID_HANDLE, "event_record", found->device,
                        "an event of " + DeviceName(found->device) + " cannot be recorded on stream " +
                            std::to_string(on->number) + " of " + DeviceName(on->device));
        }
        clock = state.order.Now(on->slot);
      }
    }
    const flagos_status_t status = forward();
    if (status != FLAGOS_OK) return status;
    const std::lock_guard lock(state.mutex);
    if (const auto found = state.events.find(event); found != state.events.end()) {
      found->second.clock = std::move(clock);
      ++found->second.records;
      if (stream == nullptr) state.order.HostSaw(found->second.clock);
    }
    return status;
  });
}

// Asks or waits for the event by `forward`. OK means that the host saw it complete, unless another thread has recorded
// it anew meanwhile: nobody can say which record was meant then.
template <class Forward>
flagos_status_t Observe(const char* entry, flagos_event_t event, Forward&& forward) {
  State& state = TheState();
  Clock clock;
  uint64_t records = 0;
  {
    const std::lock_guard lock(state.mutex);
    const EventState* found = state.FindEvent(entry, event);
    if (found == nullptr) return FLAGOS_INVALID_HANDLE;
    clock = found->clock;
    records = found->records;
  }
  const flagos_status_t status = forward();
  if (status != FLAGOS_OK) return status;
  const std::lock_guard lock(state.mutex);
  const auto found = state.events.find(event);
  if (found == state.events.end() || found->second.records == records) state.order.HostSaw(clock);
  return status;
}

flagos_status_t EventQuery(flagos_event_t event) {
  const auto forward = [&] { return g_inner->event_query(event); };
  return Checked("event_query", forward, [&] { return Observe("event_query", event, forward); });
}

flagos_status_t EventSync(flagos_event_t event) {
  const auto forward = [&] { return g_inner->event_sync(event); };
  return Checked("event_sync", forward, [&] { return Observe("event_sync", event, forward); });
}

flagos_status_t EventElapsed(flagos_event_t start, flagos_event_t end, float* out_ms) {
  const auto forward = [&] { return g_inner->event_elapsed(start, end, out_ms); };
  return Checked("event_elapsed", forward, [&] {
    {
      State& state = TheState();
      const std::lock_guard lock(state.mutex);
      for (const flagos_event_t event : {start, end}) {
        const EventState* found = state.FindEvent("event_elapsed", event);
        if (found == nullptr) return FLAGOS_INVALID_HANDLE;
        const std::string which = event == start ? "the start event " : "the end event ";
        if ((found->flags & FLAGOS_EVENT_TIMING) == 0) {
          return Misuse(FLAGOS_INVALID_HANDLE, "event_elapsed", found->device,
                        which + Hex(event) + " was made without FLAGOS_EVENT_TIMING");
        }
        if (found->records == 0) {
          return Misuse(FLAGOS_INVALID_HANDLE, "event_elapsed", found->device,
                        which + Hex(event) + " was never recorded");
        }
      }
    }
    // A time means that both are complete.
    return Observe("event_elapsed", start, [&] { return Observe("event_elapsed", end, forward); });
  });
}

}  // namespace

bool InHostFunction() noexcept { return t_in_host_function; }

flagos_status_t RefuseInHostFunction(const char* entry) {
  return Misuse(FLAGOS_INVALID_VALUE, entry, -1, "called by a host function, which may not call the driver");
}

void InstallStreams(flagos_driver_v1_t* table) {
  Put(table->device_sync, &DeviceSync);
  Put(table->stream_create, &StreamCreate);
  Put(table->stream_wrap, &StreamWrap);
  Put(table->stream_native, &StreamNative);
  Put(table->stream_destroy, &StreamDestroy);
  Put(table->stream_query, &StreamQuery);
  Put(table->stream_sync, &StreamSync);
  Put(table->stream_wait, &StreamWait);
  Put(table->stream_host_func, &StreamHostFunc);
  Put(table->event_create, &EventCreate);
  Put(table->event_destroy, &EventDestroy);
  Put(table->event_record, &EventRecord);
  Put(table->event_query, &EventQuery);
  Put(table->event_sync, &EventSync);
  Put(table->event_elapsed, &EventElapsed);
}

}  // namespace torch_fl::runtime::layers::validate
