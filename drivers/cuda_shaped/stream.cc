// SPDX-License-Identifier: Apache-2.0
// Streams. All of ours are non-blocking: the vendor's default stream, which other libraries of the process use, never
// waits for them nor they for it.
#include "cuda_shaped/shared.h"

namespace flagos_cuda_shaped {
namespace {

constexpr uint32_t kForeign = 1u << 0;  // somebody else's stream: destroy frees the handle only

// A call on a live stream, with the stream's device current.
template <class Body>
flagos_status_t OnStream(const char* function, flagos_stream_t handle, Body&& body) {
  return Guarded(function, [&]() -> flagos_status_t {
    const Handle stream = FindStream(handle);
    if (!stream.valid) return BadStream(function);
    return OnDevice(function, stream.device, [&](const Where& where) { return body(where, stream); });
  });
}

}  // namespace

HandleTable& Streams() {
  static auto* const table = new HandleTable(1);
  return *table;
}

flagos_status_t BadStream(const char* function) {
  return Fail(FLAGOS_INVALID_HANDLE, function, -1, "the stream is NULL, destroyed or not of this driver");
}

flagos_status_t StreamPriorityRange(int32_t device, int32_t* out_least, int32_t* out_greatest) {
  return OnDevice("stream_priority_range", device, [&](const Where& where) {
    int least = 0;
    int greatest = 0;
    const flagos_status_t status = Rt().DeviceGetStreamPriorityRange == nullptr
                                       ? FLAGOS_OK
                                       : CUDA_SHAPED_RT(where, DeviceGetStreamPriorityRange, &least, &greatest);
    if (status != FLAGOS_OK) return status;
    *out_least = least;
    *out_greatest = greatest;
    return FLAGOS_OK;
  });
}

flagos_status_t StreamCreate(int32_t device, uint32_t flags, int32_t priority, flagos_stream_t* out_stream) {
  return OnDevice("stream_create", device, [&](const Where& where) -> flagos_status_t {
    if (flags != FLAGOS_STREAM_DEFAULT) {
      return Fail(FLAGOS_INVALID_VALUE, where.function, device, "unknown flags %#x", flags);
    }
    VendorStream native = nullptr;
    const flagos_status_t status =
        Rt().StreamCreateWithPriority != nullptr
            ? CUDA_SHAPED_RT(where, StreamCreateWithPriority, &native, kStreamNonBlocking, priority)
            : CUDA_SHAPED_RT(where, StreamCreateWithFlags, &native, kStreamNonBlocking);
    if (status != FLAGOS_OK) return status;
    try {
      *out_stream = reinterpret_cast<flagos_stream_t>(Streams().Insert(native, device, 0));
    } catch (...) {
      Rt().StreamDestroy(native);
      throw;
    }
    return FLAGOS_OK;
  });
}

flagos_status_t StreamDestroy(flagos_stream_t handle) {
  return Guarded("stream_destroy", [&]() -> flagos_status_t {
    const Handle stream = Streams().Take(reinterpret_cast<uintptr_t>(handle));
    if (!stream.valid) return BadStream("stream_destroy");
    if ((stream.flags & kForeign) != 0) return FLAGOS_OK;
    return OnDevice("stream_destroy", stream.device,
                    [&](const Where& where) { return CUDA_SHAPED_RT(where, StreamDestroy, stream.native); });
  });
}

flagos_status_t StreamQuery(flagos_stream_t handle) {
  return OnStream("stream_query", handle, [](const Where& where, const Handle& stream) {
    return CUDA_SHAPED_RT(where, StreamQuery, stream.native);
  });
}

flagos_status_t StreamSync(flagos_stream_t handle) {
  return OnStream("stream_sync", handle, [](const Where& where, const Handle& stream) {
    return CUDA_SHAPED_RT(where, StreamSynchronize, stream.native);
  });
}

flagos_status_t StreamWait(flagos_stream_t handle, flagos_event_t event_handle) {
  return OnStream("stream_wait", handle, [&](const Where& where, const Handle& stream) {
    const Handle event = FindEvent(event_handle);
    if (!event.valid) return BadEvent("stream_wait");
    return CUDA_SHAPED_RT(where, StreamWaitEvent, stream.native, event.native, 0u);
  });
}

void* StreamNative(flagos_stream_t handle) { return FindStream(handle).native; }

// NULL is the vendor's default stream, which exists on every device.
flagos_status_t StreamWrap(int32_t device, void* native, flagos_stream_t* out_stream) {
  return Guarded("stream_wrap", [&] {
    if (const flagos_status_t status = CheckDevice({"stream_wrap", device}); status != FLAGOS_OK) return status;
    *out_stream = reinterpret_cast<flagos_stream_t>(Streams().Insert(native, device, kForeign));
    return FLAGOS_OK;
  });
}

flagos_status_t StreamHostFunc(flagos_stream_t handle, flagos_host_func_t func, void* user_data) {
  return OnStream("stream_host_func", handle, [&](const Where& where, const Handle& stream) {
    if (func == nullptr) return Fail(FLAGOS_INVALID_VALUE, where.function, stream.device, "func is NULL");
    return CUDA_SHAPED_RT(where, LaunchHostFunc, stream.native, func, user_data);
  });
}

}  // namespace flagos_cuda_shaped
