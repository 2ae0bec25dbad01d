// SPDX-License-Identifier: Apache-2.0
// Copies and fills, ordered on the current stream.
#include <cstdlib>
#include <memory>
#include <string>

#include "runtime/pinned.h"
#include "runtime/stream.h"

namespace torch_fl::runtime {
namespace {

// Orders `later` behind what is on `earlier`; both are in different devices' queues.
void OrderBehind(Stream* earlier, Stream* later) {
  if (earlier == nullptr || !earlier->Dirty()) return;
  struct Destroy {
    void operator()(Event* event) const noexcept { DestroyEvent(event); }
  };
  const std::unique_ptr<Event, Destroy> event(CreateEvent(earlier->device(), false, false));
  RecordEvent(event.get(), earlier);
  StreamWaitEvent(later, event.get());
}

bool PeersReachable(int a, int b) {
  if (Driver().peer_can_access == nullptr) return false;
  int32_t can = 0;
  CheckStatus(Driver().peer_can_access(a, b, &can), "peer_can_access", a);
  return can != 0;
}

// One copy on the stream. Where kernels run in place, a blocking copy behind an idle stream needs no queue, unless a checker is
// to see which stream it was on. Elsewhere a call without a stream would wait for every stream of the device.
void Submit(void* dst, int dst_device, const void* src, int src_device, size_t size, Stream* stream, bool async) {
  if (!async && HostView() && !stream->Dirty() && !KernelsAreOrdered()) {
    CheckStatus(Driver().copy(dst, dst_device, src, src_device, size, nullptr), "copy", stream->device());
    return;
  }
  CheckStatus(Driver().copy(dst, dst_device, src, src_device, size, stream->Handle()), "copy", stream->device());
  stream->MarkSubmitted();
  if (!async) return stream->Drain();
  // Page-locked memory is read or written when the stream gets there: its allocator must not hand it out before.
  if (src_device == FLAGOS_HOST) HostRecordStream(src, stream);
  if (dst_device == FLAGOS_HOST) HostRecordStream(dst, stream);
}

// Devices that cannot reach each other meet in host memory.
void CopyStaged(void* dst, int dst_device, const void* src, int src_device, size_t size) {
  const std::unique_ptr<void, decltype(&std::free)> staging(std::malloc(size), &std::free);
  if (staging == nullptr) {
    throw Error(FLAGOS_OUT_OF_MEMORY, "copy: no host memory to stage " + std::to_string(size) + " bytes from flagos:" +
                                          std::to_string(src_device) + " to flagos:" + std::to_string(dst_device));
  }
  Submit(staging.get(), FLAGOS_HOST, src, src_device, size, CurrentStream(src_device), false);
  Submit(dst, dst_device, staging.get(), FLAGOS_HOST, size, CurrentStream(dst_device), false);
}

void CopyBetweenDevices(void* dst, int dst_device, const void* src, int src_device, size_t size, bool async) {
  Count(g_counters.copies_d2d);
  Count(g_counters.bytes_d2d, size);
  Stream* stream = CurrentStream(dst_device);
  if (dst_device == src_device) return Submit(dst, dst_device, src, src_device, size, stream, async);
  if (!PeersReachable(dst_device, src_device)) return CopyStaged(dst, dst_device, src, src_device, size);
  Stream* source_stream = CurrentStreamIfMade(src_device);
  OrderBehind(source_stream, stream);
  Submit(dst, dst_device, src, src_device, size, stream, async);
  // Later work of the source may overwrite what is being read.
  if (async) OrderBehind(stream, CurrentStream(src_device));
}

}  // namespace

void Copy(void* dst, int dst_device, const void* src, int src_device, size_t size, bool async) {
  CheckNotForked("copy");
  if (dst_device == FLAGOS_HOST && src_device == FLAGOS_HOST) {
    throw Error(FLAGOS_INVALID_VALUE, "copy: neither side is a device");
  }
  if (dst_device != FLAGOS_HOST) CheckDevice(dst_device, "copy");
  if (src_device != FLAGOS_HOST) CheckDevice(src_device, "copy");
  if (size == 0) return;
  if (src_device == FLAGOS_HOST) {
    Count(g_counters.copies_h2d);
    Count(g_counters.bytes_h2d, size);
    Submit(dst, dst_device, src, src_device, size, CurrentStream(dst_device), async);
  } else if (dst_device == FLAGOS_HOST) {
    Count(g_counters.copies_d2h);
    Count(g_counters.bytes_d2h, size);
    Submit(dst, dst_device, src, src_device, size, CurrentStream(src_device), async);
  } else {
    CopyBetweenDevices(dst, dst_device, src, src_device, size, async);
  }
}

void Fill(void* dst, int device, uint8_t value, size_t size) {
  CheckNotForked("fill");
  CheckDevice(device, "fill");
  if (size == 0) return;
  Count(g_counters.fills);
  Stream* stream = CurrentStream(device);
  CheckStatus(Driver().fill(dst, device, value, size, stream->Handle()), "fill", device);
  stream->MarkSubmitted();
}

}  // namespace torch_fl::runtime
