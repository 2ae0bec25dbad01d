// SPDX-License-Identifier: Apache-2.0
// Copies and fills. The vendor tolerates a copy kind that lies about its pointers; here it is refused.
#include "cuda_shaped/shared.h"

namespace flagos_cuda_shaped {
namespace {

flagos_status_t CheckSide(const Where& where, const void* pointer, int side, size_t size) {
  if (pointer == nullptr || size > kMaxBytes) {
    return Fail(FLAGOS_INVALID_VALUE, where.function, side, "%zu bytes at %p cannot be copied or filled", size,
                pointer);
  }
  if (const Reserved reserved = FindReserved(pointer, size); reserved.inside) {
    if (side == reserved.device && reserved.mapped) return FLAGOS_OK;
    return Fail(FLAGOS_INVALID_VALUE, where.function, side, "%zu bytes at %p are reserved on device %d and %s", size,
                pointer, reserved.device, reserved.mapped ? "belong to it" : "not all mapped");
  }
  Place place;
  if (const flagos_status_t status = Locate(where, pointer, &place); status != FLAGOS_OK) return status;
  if (place.managed) return FLAGOS_OK;
  if (side == FLAGOS_HOST) {
    if (place.space != FLAGOS_SPACE_DEVICE) return FLAGOS_OK;
    return Fail(FLAGOS_INVALID_VALUE, where.function, place.device,
                "%p is passed as host memory but belongs to device %d", pointer, place.device);
  }
  if (place.space == FLAGOS_SPACE_DEVICE && place.device == side) return FLAGOS_OK;
  return Fail(FLAGOS_INVALID_VALUE, where.function, side, "%p is not memory of device %d", pointer, side);
}

bool Overlap(const void* a, const void* b, size_t size) {
  const auto first = reinterpret_cast<uintptr_t>(a);
  const auto second = reinterpret_cast<uintptr_t>(b);
  return first < second ? second - first < size : first - second < size;
}

flagos_status_t Submit(const Where& where, void* dst, int dst_device, const void* src, int src_device, size_t size,
                       VendorStream queue) {
  if (dst_device != FLAGOS_HOST && src_device != FLAGOS_HOST && dst_device != src_device) {
    if (Rt().MemcpyPeerAsync == nullptr) {
      return Fail(FLAGOS_UNSUPPORTED, where.function, dst_device, "this vendor has no copy between devices");
    }
    return CUDA_SHAPED_RT(where, MemcpyPeerAsync, dst, dst_device, src, src_device, size, queue);
  }
  const int kind = src_device == FLAGOS_HOST   ? kCopyHostToDevice
                   : dst_device == FLAGOS_HOST ? kCopyDeviceToHost
                                               : kCopyWithinDevice;
  return CUDA_SHAPED_RT(where, MemcpyAsync, dst, src, size, kind, queue);
}

}  // namespace

flagos_status_t Copy(void* dst, int32_t dst_device, const void* src, int32_t src_device, size_t size,
                     flagos_stream_t stream_handle) {
  return Guarded("copy", [&]() -> flagos_status_t {
    if (dst_device == FLAGOS_HOST && src_device == FLAGOS_HOST) {
      return Fail(FLAGOS_INVALID_VALUE, "copy", -1, "neither side is a device");
    }
    for (const int32_t side : {dst_device, src_device}) {
      if (side == FLAGOS_HOST) continue;
      if (const flagos_status_t status = CheckDevice({"copy", side}); status != FLAGOS_OK) return status;
    }
    const Handle stream = FindStream(stream_handle);
    if (stream_handle != nullptr && !stream.valid) return BadStream("copy");
    if (stream.valid && stream.device != dst_device && stream.device != src_device) {
      return Fail(FLAGOS_INVALID_VALUE, "copy", stream.device, "the stream belongs to device %d, which takes no part",
                  stream.device);
    }
    if (size == 0) return FLAGOS_OK;
    if (Overlap(dst, src, size)) {
      return Fail(FLAGOS_INVALID_VALUE, "copy", dst_device, "the ranges %p and %p of %zu bytes overlap", dst, src,
                  size);
    }
    // Without a stream the call comes after what is queued on either device; QueueFor sees to the other one.
    if (!stream.valid && dst_device != FLAGOS_HOST && src_device != FLAGOS_HOST && dst_device != src_device) {
      if (const flagos_status_t status = SyncDevice({"copy", src_device}); status != FLAGOS_OK) return status;
    }
    const Where where{"copy", stream.valid ? stream.device : dst_device != FLAGOS_HOST ? dst_device : src_device};
    const DeviceScope scope(where);
    if (scope.status() != FLAGOS_OK) return scope.status();
    VendorStream queue = nullptr;
    flagos_status_t status = CheckSide(where, dst, dst_device, size);
    if (status == FLAGOS_OK) status = CheckSide(where, src, src_device, size);
    if (status == FLAGOS_OK) status = QueueFor(where, stream, &queue);
    if (status == FLAGOS_OK) status = Submit(where, dst, dst_device, src, src_device, size, queue);
    return status == FLAGOS_OK ? FinishCall(where, stream, queue) : status;
  });
}

flagos_status_t Fill(void* dst, int32_t device, uint8_t value, size_t size, flagos_stream_t stream_handle) {
  return Guarded("fill", [&]() -> flagos_status_t {
    const Where where{"fill", device};
    if (const flagos_status_t status = CheckDevice(where); status != FLAGOS_OK) return status;
    const Handle stream = FindStream(stream_handle);
    if (stream_handle != nullptr && !stream.valid) return BadStream("fill");
    if (stream.valid && stream.device != device) {
      return Fail(FLAGOS_INVALID_VALUE, "fill", device, "the stream belongs to device %d", stream.device);
    }
    if (size == 0) return FLAGOS_OK;
    const DeviceScope scope(where);
    if (scope.status() != FLAGOS_OK) return scope.status();
    VendorStream queue = nullptr;
    flagos_status_t status = CheckSide(where, dst, device, size);
    if (status == FLAGOS_OK) status = QueueFor(where, stream, &queue);
    if (status == FLAGOS_OK) status = CUDA_SHAPED_RT(where, MemsetAsync, dst, int{value}, size, queue);
    return status == FLAGOS_OK ? FinishCall(where, stream, queue) : status;
  });
}

}  // namespace flagos_cuda_shaped
