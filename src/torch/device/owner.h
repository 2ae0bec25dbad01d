// SPDX-License-Identifier: Apache-2.0
// Who owns the flagos devices of this process; chosen once, at registration.
//
//  - direct: our runtime over a driver. Streams, events and memory are ours; the target's kernels run on the host view.
//  - delegated: the PyTorch backend of another key in this process. A flagos device, stream, event or block of memory is that
//    backend's, under another device type: the same index, the same stream id, one memory pool, one default generator.
//
// The guard and the c10 allocator come with the owner; the rest of the torch layer asks it here.
//
// Threads: any. Throws c10 errors unless noexcept.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>
#include <c10/macros/Export.h>

#include <cstddef>
#include <string>
#include <utility>

namespace torch_fl {

struct Target;

class C10_EXPORT Owner {
 public:
  virtual ~Owner() = default;
  // torch's name for the device type that owns the devices; empty for our own runtime.
  virtual std::string Delegate() const { return {}; }
  // Registers guard and allocator with c10, and what else the owner needs to serve tensors. Once.
  virtual void Register() = 0;

  // -- Devices. No query creates a context.
  virtual int DeviceCount() const noexcept = 0;
  virtual std::string UnavailableReason() const = 0;  // why DeviceCount() is 0
  virtual int CurrentDevice() const noexcept = 0;  // of the calling thread
  virtual int ExchangeDevice(int device) const = 0;  // returns the previous one; a negative device changes nothing
  virtual bool HasContext(int device) const noexcept = 0;
  virtual void SynchronizeDevice(int device) const = 0;
  virtual std::pair<size_t, size_t> DeviceMemory(int device) const = 0;  // free, total
  virtual void CheckDevice(int device, const char* call) const = 0;  // throws outside 0 .. DeviceCount()-1
  // Before the first use of a device: makes sure that it can be used, or says why not.
  virtual void Init() const = 0;

  // -- Memory
  // The target's kernels can use the device's memory where it lies, so storages have twins (storage.h).
  virtual bool HasTarget() const = 0;
  // Bytes of flagos:device as the target sees them. Null for 0 bytes.
  virtual c10::DataPtr AllocateTarget(size_t nbytes, c10::DeviceIndex device, const char* op) const = 0;
  // The same bytes under their target address, owned by the result.
  virtual c10::DataPtr ToTarget(c10::DataPtr data, c10::DeviceIndex device) const = 0;
  // New bytes for a twin; keeps the common prefix.
  virtual void ResizeTwin(c10::StorageImpl* twin, size_t nbytes, c10::DeviceIndex device, const char* op) const = 0;
  // Blocking copy between device addresses and, for a negative device index, host memory.
  virtual void Copy(void* dst, int dst_device, const void* src, int src_device, size_t nbytes) const = 0;
  // The block behind a twin is used by work queued on `stream`: it is not handed out again before that is done.
  virtual void RecordStream(const c10::DataPtr& bytes, c10::Stream stream) const = 0;
  virtual c10::DeviceIndex DeviceOfPointer(void* pointer) const = 0;
  virtual c10::Allocator* PinnedAllocator() const = 0;
  virtual bool IsPinned(const void* pointer) const noexcept = 0;

  // -- Random numbers: the target's generator inside a FlagosGenerator
  virtual at::Generator DefaultInner(int device) const = 0;
  virtual at::Generator NewInner(int device) const = 0;
};

C10_EXPORT Owner& ActiveOwner();

// The choice. Both owners live for ever; the delegated one forwards to the backend of the active target.
Owner& DirectOwner();
Owner& DelegatedOwner();
// Fixes target and owner of the process. Before anything is registered with torch.
void SetOwner(Owner& owner, const Target& target, bool delegated);

// True when another backend owns the devices. Constant once flagos is registered; one load.
C10_EXPORT extern bool g_delegated;
inline bool Delegated() noexcept { return g_delegated; }

// torch writes "the current device" as index -1.
inline int ResolveDevice(int index) noexcept { return index < 0 ? ActiveOwner().CurrentDevice() : index; }

}  // namespace torch_fl
