// SPDX-License-Identifier: Apache-2.0
// Copies and fills. All of them go through the host view.
#include <cstring>

#include "host/stream.h"

namespace flagos_host {
namespace {

struct Side {
  uintptr_t address = 0;  // always accessible
  bool pageable = false;  // host memory that its owner may move or free while a copy is queued
};

bool Refuse(const char* function, int device, const char* what, const void* pointer, size_t size) {
  Fail(FLAGOS_INVALID_VALUE, function, device, "%zu bytes at %p %s", size, pointer, what);
  return false;
}

bool ResolveDevice(const char* function, const void* pointer, int device, size_t size, Side* out) {
  out->address = HostAddress(device, pointer, size);
  if (out->address != 0) return true;
  Fail(FLAGOS_INVALID_VALUE, function, device, "%zu bytes at %p are not inside one block of device %d", size, pointer,
       device);
  return false;
}

// The host view of device memory is accepted as any host memory. With `protect` off a device address is its own host view,
// so it cannot be refused there.
bool ResolveHost(const char* function, const void* pointer, size_t size, Side* out) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (pointer == nullptr) {
    Fail(FLAGOS_INVALID_VALUE, function, -1, "the host pointer is NULL");
    return false;
  }
  if (size - 1 > UINTPTR_MAX - address) return Refuse(function, -1, "run past the address space", pointer, size);
  if (TheState().config.protect) {
    for (const uintptr_t end : {address, address + size - 1}) {
      const int owner = OwnerOf(reinterpret_cast<const void*>(end));
      if (owner < 0) continue;
      Fail(FLAGOS_INVALID_VALUE, function, owner, "%p is passed as host memory but belongs to device %d", pointer,
           owner);
      return false;
    }
  }
  if (const int device = ViewOf(address); device >= 0) {
    const Arena& arena = DeviceOf(device).arena;
    if (HostAddress(device, reinterpret_cast<const void*>(address - arena.host + arena.device), size) == 0) {
      return Refuse(function, device, "are in the host view but not inside one block of the device", pointer, size);
    }
  }
  const HostKind kind = KindOf(pointer, size);
  if (kind == HostKind::kPastPinned) {
    return Refuse(function, -1, "run past the end of their page-locked block", pointer, size);
  }
  out->address = address;
  out->pageable = kind == HostKind::kPageable;
  return true;
}

// Fills *out, or records the failure and says false.
bool Resolve(const char* function, const void* pointer, int device, size_t size, Side* out) {
  return device == FLAGOS_HOST ? ResolveHost(function, pointer, size, out)
                               : ResolveDevice(function, pointer, device, size, out);
}

flagos_status_t WrongStream(const char* function, int stream_device) {
  return Fail(FLAGOS_INVALID_VALUE, function, stream_device, "the stream belongs to device %d, which takes no part",
              stream_device);
}

void Move(uintptr_t dst, uintptr_t src, size_t size) {
  std::memcpy(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), size);
}

}  // namespace

flagos_status_t Copy(void* dst, int32_t dst_device, const void* src, int32_t src_device, size_t size,
                     flagos_stream_t stream_handle) {
  return Guarded("copy", [&] {
    if (dst_device == FLAGOS_HOST && src_device == FLAGOS_HOST) {
      return Fail(FLAGOS_INVALID_VALUE, "copy", -1, "neither side is a device");
    }
    for (const int32_t side : {dst_device, src_device}) {
      if (side == FLAGOS_HOST) continue;
      if (const flagos_status_t status = CheckDevice("copy", side); status != FLAGOS_OK) return status;
    }
    const auto stream = stream_handle != nullptr ? FindStream(stream_handle) : nullptr;
    if (stream == nullptr && stream_handle != nullptr) return BadStream("copy");
    if (stream != nullptr && stream->device != dst_device && stream->device != src_device) {
      return WrongStream("copy", stream->device);
    }
    if (size == 0) return FLAGOS_OK;
    RaiseFaultHandler();
    Side to;
    Side from;
    if (!Resolve("copy", dst, dst_device, size, &to) || !Resolve("copy", src, src_device, size, &from)) {
      return flagos_sdk::LastError()->status;
    }
    if (to.address < from.address + size && from.address < to.address + size) {
      return Fail(FLAGOS_INVALID_VALUE, "copy", dst_device, "the ranges %p and %p of %zu bytes overlap", dst, src,
                  size);
    }
    if (stream == nullptr) {
      if (OnWorker()) return RefuseOnWorker("copy");
      if (dst_device != FLAGOS_HOST) WaitForStreams(dst_device);
      if (src_device != FLAGOS_HOST && src_device != dst_device) WaitForStreams(src_device);
      Move(to.address, from.address, size);
    } else if (from.pageable) {
      // The caller may reuse the source as soon as this returns.
      std::shared_ptr<char[]> staging(new char[size]);
      std::memcpy(staging.get(), reinterpret_cast<const void*>(from.address), size);
      stream->Submit([staging, to, size] { Move(to.address, reinterpret_cast<uintptr_t>(staging.get()), size); });
    } else {
      if (to.pageable && OnWorker()) return RefuseOnWorker("copy");
      const uint64_t number = stream->Submit([to, from, size] { Move(to.address, from.address, size); });
      // Nobody promises that pageable memory outlives the call: like CUDA, return with the bytes in place.
      if (to.pageable) stream->WaitFor(number);
    }
    return FLAGOS_OK;
  });
}

flagos_status_t Fill(void* dst, int32_t device, uint8_t value, size_t size, flagos_stream_t stream_handle) {
  return Guarded("fill", [&] {
    if (const flagos_status_t status = CheckDevice("fill", device); status != FLAGOS_OK) return status;
    const auto stream = stream_handle != nullptr ? FindStream(stream_handle) : nullptr;
    if (stream == nullptr && stream_handle != nullptr) return BadStream("fill");
    if (stream != nullptr && stream->device != device) return WrongStream("fill", stream->device);
    if (size == 0) return FLAGOS_OK;
    RaiseFaultHandler();
    Side to;
    if (!Resolve("fill", dst, device, size, &to)) return flagos_sdk::LastError()->status;
    const auto run = [to, value, size] { std::memset(reinterpret_cast<void*>(to.address), value, size); };
    if (stream == nullptr) {
      if (OnWorker()) return RefuseOnWorker("fill");
      WaitForStreams(device);
      run();
    } else {
      stream->Submit(run);
    }
    return FLAGOS_OK;
  });
}

}  // namespace flagos_host
