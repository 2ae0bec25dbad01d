// SPDX-License-Identifier: Apache-2.0
// The runtime as the torch layer sees it: one active driver, its devices, memory, streams and events. No torch header.
//
// Threads: every function may be called from any thread. Functions marked noexcept never throw; the others throw
// torch_fl::Error. Nothing here takes the GIL or calls back into Python, so all of it may run with the GIL held.
// Fork: in a child of a process that had initialised a device, everything except Free and Owns throws an Error that
// names `spawn`; Free does nothing there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "torch_fl/driver.h"

namespace torch_fl::runtime {

// ---- Driver -----------------------------------------------------------------------------------------------------------

struct DriverInfo {
  std::string name;  // what FLAGOS_DRIVER would say, e.g. "host"
  std::string path;  // shared object it came from
  std::string platform;  // from the table
  std::string implementation;  // from the table
  uint64_t capabilities = 0;  // FLAGOS_CAP_* bits
  std::vector<std::string> missing_entries;  // optional table entries that are NULL
  std::vector<std::string> layers;  // FLAGOS_DRIVER_LAYERS, outermost first
};

// The active driver's table, completed: entries beyond the driver's struct_size are NULL. Loads and initialises the driver on first use:
// FLAGOS_DRIVER_PLUGIN=<path>, else FLAGOS_DRIVER=<name>, else the first hardware driver that reports a device, else `host`.
// Throws when the choice cannot be loaded; the reason is remembered and thrown again, the load is not retried.
const flagos_driver_v1_t& Driver();
const DriverInfo& GetDriverInfo();
// Names that FLAGOS_DRIVER accepts here: lib<...>_driver_<name>.so files found in the driver folder.
std::vector<std::string> AvailableDrivers();
// Folder that holds the driver libraries: FLAGOS_DRIVER_PATH, else `drivers` beside libtorch_fl_runtime.so.
std::string DriverFolder();
// True when a driver other than `host` and `null` reports a device. Creates no context. Never throws.
bool HardwareDetected() noexcept;

// ---- Attention: the one word that the hot path loads -------------------------------------------------------------------

enum : uint32_t {
  kAttentionForked = 1u << 0,  // this process is a forked child of an initialised parent
  kAttentionFaults = 1u << 1,  // the driver reports host accesses to device memory
  kAttentionKernels = 1u << 2,  // the driver or a layer wants KernelEnd (FLAGOS_CAP_KERNEL_ORDER)
};
extern std::atomic<uint32_t> g_attention;
// Kernels that run in place must be reported with KernelEnd.
inline bool KernelsAreOrdered() noexcept {
  return (g_attention.load(std::memory_order_relaxed) & kAttentionKernels) != 0;
}
// Throws the fork error, or `host access to device memory: allocation #N, SIZE bytes, allocated by OP` for the oldest
// recorded fault.
void CheckAttentionSlow(const char* call);
// Every public call of the torch layer starts with it. `call` is the operator or API name for the message.
inline void CheckAttention(const char* call) {
  if (g_attention.load(std::memory_order_relaxed) != 0) [[unlikely]]
    CheckAttentionSlow(call);
}

// ---- Devices: no query creates a context ---------------------------------------------------------------------------------

int DeviceCount() noexcept;  // 0 when there is none, or the driver cannot be loaded
std::string UnavailableReason();  // why DeviceCount() is 0; empty when it is not
// Throws when `device` is outside 0 .. DeviceCount()-1, naming `call`; says UnavailableReason() when there is no device.
void CheckDevice(int device, const char* call);
int CurrentDevice() noexcept;  // of the calling thread; starts at 0
void SetDevice(int device);
int ExchangeDevice(int device);  // returns the previous one; a negative device changes nothing
bool HasContext(int device) noexcept;  // memory or a stream was ever made on it by this process
flagos_device_info_t DeviceInfo(int device);
void DeviceMemory(int device, uint64_t* free_bytes, uint64_t* total_bytes);
void SynchronizeDevice(int device);

// True when CPU kernels may run on device memory in place (FLAGOS_CAP_HOST_VIEW).
bool HostView();
// host address = device address + offset. Only with HostView().
ptrdiff_t HostViewOffset(int device);

// ---- Memory: the caching device allocator (allocator.h: statistics, limits, pools, snapshots) --------------------------------

class Stream;

struct AllocationInfo {
  void* base = nullptr;  // device address
  size_t size = 0;  // bytes asked for
  int device = -1;
  uint64_t number = 0;  // counts allocations of the process, from 1
  const char* op = nullptr;  // operator that made it; a string that lives for ever, or NULL
};

// Device address of at least `size` bytes, aligned to 64 bytes at least (unless the driver misaligns on purpose); NULL for
// size 0. `op` must live for ever. Throws OUT_OF_MEMORY with the text `flagos out of memory. Tried to allocate ...`
// (sizes and totals follow, in the usual order) after emptying the cache and trying again.
void* Allocate(int device, size_t size, const char* op = nullptr);
// Takes the address Allocate gave. NULL is fine. From any thread. Must not be handed anything Owns() denies.
void Free(void* pointer) noexcept;
// Lock-free: is `pointer` the base address of a live block of this pool? Fills *device if so.
bool Owns(const void* pointer, int* device) noexcept;
// The live block that holds the address (interior addresses too).
bool FindAllocation(const void* pointer, AllocationInfo* info) noexcept;
// Work queued on `stream` up to the block's Free uses it: the block is not handed out again before that work is done.
// `pointer` is what Allocate gave; anything else is ignored. The stream a block was allocated on needs no mention.
void RecordStream(void* pointer, Stream* stream);
void EmptyCache();  // gives cached blocks back to the driver, on every device

// Copies. `dst_device`/`src_device` are device indices or FLAGOS_HOST. Ordered on the current stream of the device side
// (dst's if both are devices). With async=false the bytes have moved when it returns. With async=true: pinned host memory
// must stay as it is until the stream gets there (its own allocator knows, see pinned.h); a pageable source has been read, a
// pageable destination has been written when it returns.
void Copy(void* dst, int dst_device, const void* src, int src_device, size_t size, bool async);
void Fill(void* dst, int device, uint8_t value, size_t size);

// ---- Streams -------------------------------------------------------------------------------------------------------------

// Streams live as long as the process; a Stream* never dangles. Id 0 is the device's default stream.
int StreamDevice(const Stream* stream) noexcept;
int64_t StreamId(const Stream* stream) noexcept;
int StreamPriority(const Stream* stream) noexcept;
Stream* DefaultStream(int device);
Stream* CurrentStream(int device);  // of the calling thread; the default stream until set
Stream* StreamFromId(int device, int64_t id);  // throws on an id never handed out
Stream* StreamFromPool(int device, int priority);  // round robin over 32 per priority
Stream* ExternalStream(int device, void* native);
Stream* ExchangeCurrentStream(Stream* stream);  // for the stream's device; returns the previous one
void* StreamNative(Stream* stream);
bool QueryStream(Stream* stream);  // true when idle
void SynchronizeStream(Stream* stream);
void StreamHostFunc(Stream* stream, flagos_host_func_t func, void* user_data);

// ---- Kernels that the caller runs in place on the host view ------------------------------------------------------------------

// Before: waits until everything queued on the calling thread's current stream of `device` has happened. Costs one load
// when nothing was ever queued on it. Orders nothing else.
void KernelBegin(int device);
// After, only when KernelsAreOrdered(): gives the kernel its place in the stream's order and lets a checker see
// what it touched. Throws UNORDERED when the kernel raced with other work.
void KernelEnd(int device, const char* op, const flagos_access_t* accesses, size_t count);

// ---- Events --------------------------------------------------------------------------------------------------------------

class Event;
Event* CreateEvent(int device, bool timing, bool blocking);
void DestroyEvent(Event* event) noexcept;
int EventDevice(const Event* event) noexcept;
void RecordEvent(Event* event, Stream* stream);
void StreamWaitEvent(Stream* stream, Event* event);
bool QueryEvent(Event* event);  // true when complete or never recorded
void SynchronizeEvent(Event* event);
double ElapsedMs(Event* start, Event* end);

// ---- Counters of this layer -------------------------------------------------------------------------------------------------

struct RuntimeCounters {
  uint64_t copies_h2d = 0, copies_d2h = 0, copies_d2d = 0;  // Copy calls
  uint64_t bytes_h2d = 0, bytes_d2h = 0, bytes_d2d = 0;
  uint64_t fills = 0;
  uint64_t device_syncs = 0, stream_syncs = 0, event_syncs = 0;  // host blocked on the device
};
RuntimeCounters GetRuntimeCounters() noexcept;
void ResetRuntimeCounters() noexcept;

}  // namespace torch_fl::runtime
