// SPDX-License-Identifier: Apache-2.0
// validate: copies, fills and kernels.
#include "runtime/layers/validate.h"

namespace torch_fl::runtime::layers::validate {
namespace {

uintptr_t Address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

bool Unified() { return (g_inner->capabilities() & FLAGOS_CAP_UNIFIED_ADDRESS) != 0; }

struct CopySide {
  const char* word;
  const void* pointer;
  int device;
  bool is_write;
};

// Adds what the side touches; or refuses.
flagos_status_t CheckSide(State& state, const CopySide& side, size_t size, Work* work) {
  const uintptr_t begin = Address(side.pointer);
  const std::string word = side.word;
  if (side.pointer == nullptr) return Misuse(FLAGOS_INVALID_VALUE, "copy", side.device, word + " is NULL");
  if (side.device != FLAGOS_HOST) {
    if (!state.devices[side.device].memory.Holds(begin, size)) {
      return Misuse(FLAGOS_INVALID_VALUE, "copy", side.device,
                    word + " " + WhyNotInside(state, side.device, begin, size));
    }
    work->touches.push_back({side.device, begin, size, side.is_write});
    return FLAGOS_OK;
  }
  if (Unified()) {
    for (const auto& [device, memory] : state.devices) {
      if (!memory.memory.At(begin)) continue;
      return Misuse(FLAGOS_INVALID_VALUE, "copy", device,
                    word + " " + Hex(begin) + " is passed as host memory but belongs to " + DeviceName(device));
    }
  }
  // What the host itself does to page-locked memory passes no table; that copies do not collide there can be told.
  if (state.IsPinned(begin, size)) work->touches.push_back({FLAGOS_HOST, begin, size, side.is_write});
  return FLAGOS_OK;
}

flagos_status_t CheckCopy(State& state, const CopySide& dst, const CopySide& src, size_t size, Work* work) {
  if (dst.device == FLAGOS_HOST && src.device == FLAGOS_HOST) {
    return Misuse(FLAGOS_INVALID_VALUE, "copy", -1, "neither side is a device");
  }
  if (work->stream != nullptr) {
    const StreamState* stream = state.FindStream("copy", work->stream);
    if (stream == nullptr) return FLAGOS_INVALID_HANDLE;
    if (stream->device != dst.device && stream->device != src.device) {
      return Misuse(FLAGOS_INVALID_VALUE, "copy", stream->device,
                    "stream " + std::to_string(stream->number) + " belongs to " + DeviceName(stream->device) +
                        ", which takes no part in the copy");
    }
  }
  if (size == 0) return FLAGOS_OK;
  if (const flagos_status_t status = CheckSide(state, dst, size, work); status != FLAGOS_OK) return status;
  if (const flagos_status_t status = CheckSide(state, src, size, work); status != FLAGOS_OK) return status;
  const uintptr_t to = Address(dst.pointer);
  const uintptr_t from = Address(src.pointer);
  if (dst.device == src.device && to < from + size && from < to + size) {
    return Misuse(FLAGOS_INVALID_VALUE, "copy", dst.device,
                  "the destination " + Hex(to) + " and the source " + Hex(from) + " overlap within " +
                      std::to_string(size) + " bytes");
  }
  work->devices = {dst.device, src.device};
  return FLAGOS_OK;
}

flagos_status_t Copy(void* dst, int32_t dst_device, const void* src, int32_t src_device, size_t size,
                     flagos_stream_t stream) {
  const auto forward = [&] { return g_inner->copy(dst, dst_device, src, src_device, size, stream); };
  return Checked("copy", forward, [&] {
    for (const int side : {dst_device, src_device}) {
      if (side != FLAGOS_HOST && !KnownDevice(side)) return forward();
    }
    State& state = TheState();
    Work work{"copy", "copy", stream};
    {
      const std::lock_guard lock(state.mutex);
      const CopySide to{"the destination", dst, dst_device, true};
      const CopySide from{"the source", src, src_device, false};
      if (const flagos_status_t status = CheckCopy(state, to, from, size, &work); status != FLAGOS_OK) return status;
      if (const flagos_status_t status = state.Before(&work); status != FLAGOS_OK) return status;
    }
    const flagos_status_t status = forward();
    if (status != FLAGOS_OK || size == 0) return status;
    const std::lock_guard lock(state.mutex);
    return state.After(work);
  });
}

flagos_status_t Fill(void* dst, int32_t device, uint8_t value, size_t size, flagos_stream_t stream) {
  const auto forward = [&] { return g_inner->fill(dst, device, value, size, stream); };
  return Checked("fill", forward, [&] {
    if (!KnownDevice(device)) return forward();
    State& state = TheState();
    Work work{"fill", "fill", stream, {device, -1}};
    {
      const std::lock_guard lock(state.mutex);
      if (stream != nullptr) {
        const StreamState* found = state.FindStream("fill", stream);
        if (found == nullptr) return FLAGOS_INVALID_HANDLE;
        if (found->device != device) {
          return Misuse(FLAGOS_INVALID_VALUE, "fill", device,
                        "stream " + std::to_string(found->number) + " belongs to " + DeviceName(found->device) +
                            ", not to " + DeviceName(device));
        }
      }
      if (size != 0) {
        if (!state.devices[device].memory.Holds(Address(dst), size)) {
          return Misuse(FLAGOS_INVALID_VALUE, "fill", device,
                        "the destination " + WhyNotInside(state, device, Address(dst), size));
        }
        work.touches.push_back({device, Address(dst), size, true});
        if (const flagos_status_t status = state.Before(&work); status != FLAGOS_OK) return status;
      }
    }
    const flagos_status_t status = forward();
    if (status != FLAGOS_OK || size == 0) return status;
    const std::lock_guard lock(state.mutex);
    return state.After(work);
  });
}

// ---- Kernels that the host runs in place. Where the driver knows nothing of them, waiting for the stream is all that
// the interface asks for; that wait orders nothing else, so it is no sync here.

flagos_status_t KernelBegin(flagos_stream_t stream) {
  const auto forward = [&] {
    return g_inner->kernel_begin != nullptr ? g_inner->kernel_begin(stream) : g_inner->stream_sync(stream);
  };
  return Checked("kernel_begin", forward, [&] {
    {
      State& state = TheState();
      const std::lock_guard lock(state.mutex);
      if (state.FindStream("kernel_begin", stream) == nullptr) return FLAGOS_INVALID_HANDLE;
    }
    return forward();
  });
}

// Adds what the kernel touched, or refuses an address without memory behind it.
flagos_status_t CheckAccesses(State& state, int device, const flagos_kernel_t& kernel, Work* work) {
  for (size_t i = 0; i < kernel.access_count; ++i) {
    const flagos_access_t& access = kernel.accesses[i];
    if (access.size == 0) continue;
    const uintptr_t begin = Address(access.pointer);
    if (!state.devices[device].memory.Holds(begin, access.size)) {
      return Misuse(FLAGOS_INVALID_VALUE, "kernel_end", device,
                    std::string(access.is_write != 0 ? "write" : "read") + " by " + kernel.name + ": " +
                        WhyNotInside(state, device, begin, access.size));
    }
    work->touches.push_back({device, begin, access.size, access.is_write != 0});
  }
  return FLAGOS_OK;
}

// The kernel has run: what it collided with is found after the fact, and its place in the order is kept all the same.
flagos_status_t KernelEnd(flagos_stream_t stream, const flagos_kernel_t* kernel) {
  const auto forward = [&] { return g_inner->kernel_end != nullptr ? g_inner->kernel_end(stream, kernel) : FLAGOS_OK; };
  return Checked("kernel_end", forward, [&] {
    State& state = TheState();
    Work work{"kernel_end", nullptr, stream};
    {
      const std::lock_guard lock(state.mutex);
      const StreamState* found = state.FindStream("kernel_end", stream);
      if (found == nullptr) return FLAGOS_INVALID_HANDLE;
      if (kernel == nullptr || kernel->name == nullptr || (kernel->accesses == nullptr && kernel->access_count != 0)) {
        return Misuse(FLAGOS_INVALID_VALUE, "kernel_end", found->device,
                      "the kernel, its name or its accesses are NULL");
      }
      if (const flagos_status_t status = CheckAccesses(state, found->device, *kernel, &work); status != FLAGOS_OK) {
        return status;
      }
      work.name = state.names.insert(kernel->name).first->c_str();
      state.accesses.fetch_add(work.touches.size(), std::memory_order_relaxed);
    }
    const flagos_status_t status = forward();
    if (status != FLAGOS_OK) return status;
    const std::lock_guard lock(state.mutex);
    return state.After(work);
  });
}

}  // namespace

void InstallWork(flagos_driver_v1_t* table) {
  table->copy = &Copy;
  table->fill = &Fill;
  const uint64_t bits = g_inner->capabilities();
  if ((bits & (FLAGOS_CAP_HOST_VIEW | FLAGOS_CAP_KERNEL_ORDER)) == 0) return;
  table->kernel_begin = &KernelBegin;
  table->kernel_end = &KernelEnd;
}

}  // namespace torch_fl::runtime::layers::validate
