// SPDX-License-Identifier: Apache-2.0
// Kernels that the caller runs on the host view: their place in a stream's order.
#include "host/stream.h"

namespace flagos_host {
namespace {

flagos_status_t CheckAccesses(int device, const flagos_kernel_t& kernel) {
  const char* name = kernel.name != nullptr ? kernel.name : "an unnamed kernel";
  for (size_t i = 0; i < kernel.access_count; ++i) {
    const flagos_access_t& access = kernel.accesses[i];
    if (access.size == 0 || HostAddress(device, access.pointer, access.size) != 0) continue;
    return Fail(FLAGOS_INVALID_VALUE, "kernel_end", device,
                "%s %s %zu bytes at %p, which are not inside one block of device %d", name,
                access.is_write != 0 ? "wrote" : "read", access.size, access.pointer, device);
  }
  return FLAGOS_OK;
}

}  // namespace

flagos_status_t KernelBegin(flagos_stream_t handle) {
  return Guarded("kernel_begin", [&] {
    const auto stream = FindStream(handle);
    if (stream == nullptr) return BadStream("kernel_begin");
    if (OnWorker()) return RefuseOnWorker("kernel_begin");
    stream->Wait();
    return FLAGOS_OK;
  });
}

flagos_status_t KernelEnd(flagos_stream_t handle, const flagos_kernel_t* kernel) {
  return Guarded("kernel_end", [&] {
    const auto stream = FindStream(handle);
    if (stream == nullptr) return BadStream("kernel_end");
    if (kernel == nullptr || kernel->struct_size < sizeof *kernel ||
        (kernel->accesses == nullptr && kernel->access_count != 0)) {
      return Fail(FLAGOS_INVALID_VALUE, "kernel_end", stream->device, "the kernel is NULL, short or has no accesses");
    }
    if (const flagos_status_t status = CheckAccesses(stream->device, *kernel); status != FLAGOS_OK) return status;
    // The bytes are written, but a program that forgets to wait must see what it would see on a real device: not yet.
    if (TheState().config.lazy) stream->Submit([] {});
    return FLAGOS_OK;
  });
}

}  // namespace flagos_host
