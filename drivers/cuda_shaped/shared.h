// SPDX-License-Identifier: Apache-2.0
// What the files of the driver share: its state, the device scope that every call runs in, errors.
//
// Threads: every table entry may be called from any thread. No lock is held while the vendor is called, except the one
// that makes a device's context, which nothing else waits for.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

#include "cuda_shaped/handles.h"
#include "cuda_shaped/vendor.h"
#include "sdk/last_error.h"
#include "sdk/symbols.h"
#include "torch_fl/driver.h"

namespace flagos_cuda_shaped {

using flagos_sdk::Fail;

inline constexpr int kMaxDevices = 64;

// An error number of the vendor, and the status it stands for, resolved by name at load.
struct ErrorNumber {
  int code;
  flagos_status_t status;
};

struct Device {
  std::atomic<bool> used{false};         // this process made a context on it, through us
  std::atomic<VendorContext> context{};  // its primary context, kept for good; NULL without a driver library
  std::atomic<int64_t> lost{0};          // the vendor's error that ended it
  std::atomic<VendorStream> calls{};     // where calls without a stream run, made by the first of them
  std::mutex mutex;                      // making the context and that queue
};

struct State {
  RuntimeFunctions runtime;
  DriverFunctions driver;
  bool contexts = false;  // the driver library can switch contexts: the scope never sets a thread's current device
  flagos_sdk::Audit runtime_audit;
  flagos_sdk::Audit driver_audit;
  bool own_driver = true;  // the vendor's installed driver library: its monitor speaks of the same devices
  std::string absent;      // why there can be no device here; empty otherwise
  std::array<ErrorNumber, 64> errors{};
  size_t error_count = 0;
  std::array<Device, kMaxDevices> devices;
  std::atomic<int> first_used{-1};

  // The vendor library itself is initialised by the first call that needs more than a count: until then a fork is harmless.
  std::atomic<bool> touched{false};
  std::atomic<int> count{-1};  // -1: not asked yet
  std::mutex touch_mutex;
};

// Made by init and never destroyed: late frees use it until the process is gone.
extern std::atomic<State*> g_state;
extern std::atomic<bool> g_forked;  // a child of a process in which the vendor library was initialised
inline State& TheState() { return *g_state.load(std::memory_order_relaxed); }
inline const RuntimeFunctions& Rt() { return TheState().runtime; }
inline const DriverFunctions& Drv() { return TheState().driver; }

// ---- Errors

// Which table entry runs, for which device (-1: none).
struct Where {
  const char* function;
  int device = -1;
};

// Turns a vendor's return value into a status, records a failure with the vendor's code and words, and clears the
// thread's last error that the vendor leaves behind. `call` is the logical name.
flagos_status_t CheckRuntime(const Where& where, const char* call, int code);
flagos_status_t CheckDriver(const Where& where, const char* call, int code);
// FLAGOS_UNSUPPORTED: the library that was opened does not export the function.
flagos_status_t Missing(const Where& where, const char* call);
#define CUDA_SHAPED_RT(where, logical, ...) \
  (Rt().logical != nullptr ? CheckRuntime(where, #logical, Rt().logical(__VA_ARGS__)) : Missing(where, #logical))
#define CUDA_SHAPED_DRV(where, logical, ...) \
  (Drv().logical != nullptr ? CheckDriver(where, #logical, Drv().logical(__VA_ARGS__)) : Missing(where, #logical))

// ---- Entering

// FLAGOS_NOT_INITIALIZED before init and in a forked child.
flagos_status_t CheckReady(const char* function);
// Initialises the vendor library, once a process; after it the exact number of devices is known.
flagos_status_t Touch(const char* function);
// Touches, and refuses an index out of range and a device that is lost.
flagos_status_t CheckDevice(const Where& where);

// Ends every entry of the table: no exception may leave the driver.
template <class Body>
flagos_status_t Guarded(const char* function, Body&& body) {
  try {
    if (const flagos_status_t status = CheckReady(function); status != FLAGOS_OK) return status;
    return body();
  } catch (const std::exception& error) {
    return Fail(FLAGOS_OUT_OF_MEMORY, function, -1, "host memory: %s", error.what());
  }
}

// Makes `device` the calling thread's current one and puts back what was before. What is current is asked of the vendor
// each time: other libraries of the process change it too. Makes the device's context when it has none.
class DeviceScope {
 public:
  explicit DeviceScope(const Where& where);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  flagos_status_t status() const { return status_; }

 private:
  flagos_status_t status_ = FLAGOS_OK;
  bool pushed_ = false;
  int before_ = -1;
};

// An entry that works on one device: body(where) runs with that device current.
template <class Body>
flagos_status_t OnDevice(const char* function, int device, Body&& body) {
  return Guarded(function, [&]() -> flagos_status_t {
    const Where where{function, device};
    if (const flagos_status_t status = CheckDevice(where); status != FLAGOS_OK) return status;
    const DeviceScope scope(where);
    if (scope.status() != FLAGOS_OK) return scope.status();
    return body(where);
  });
}

// True when somebody in this process has a context on the device; makes none.
bool ContextExists(int device);
// A device for calls that need any: the first this process used, else 0.
int AnyDevice();
// Waits for everything queued on the device.
flagos_status_t SyncDevice(const Where& where);
// The same for every device that this process used.
flagos_status_t SyncUsedDevices(const char* function);
// Peers that were given access to `device`, as bits.
uint64_t PeersOf(int device);

// ---- Handles

HandleTable& Streams();
HandleTable& Events();
inline Handle FindStream(flagos_stream_t stream) { return Streams().Find(reinterpret_cast<uintptr_t>(stream)); }
inline Handle FindEvent(flagos_event_t event) { return Events().Find(reinterpret_cast<uintptr_t>(event)); }
flagos_status_t BadStream(const char* function);
flagos_status_t BadEvent(const char* function);

// The native stream for a call on `device` (which is current): the handle's own, or for a call without a stream a queue of
// the device's own, after everything that was queued on the device has ended. FinishCall waits for that queue, so that the
// call comes before all that is queued later.
flagos_status_t QueueFor(const Where& where, const Handle& stream, VendorStream* out);
flagos_status_t FinishCall(const Where& where, const Handle& stream, VendorStream queue);

// ---- Pointers

struct Place {
  flagos_memory_space_t space = FLAGOS_SPACE_UNKNOWN;
  int device = -1;  // owner of device memory
  bool managed = false;
};
// Where the vendor says an address lies. Needs a current device.
flagos_status_t Locate(const Where& where, const void* pointer, Place* out);
// No device has more: a larger size is refused here, before arithmetic on it can overflow in the vendor's library.
inline constexpr size_t kMaxBytes = size_t{1} << 47;
// Whether `size` bytes at the address lie in one of our reservations (memory_reserve), and whether all of them are mapped.
struct Reserved {
  bool inside = false;
  bool mapped = false;
  int device = -1;
};
Reserved FindReserved(const void* pointer, size_t size);

// ---- Table entries
flagos_status_t Init(const flagos_option_t* options, size_t option_count);
flagos_status_t DeviceCount(int32_t* out_count);
flagos_status_t DeviceInfo(int32_t device, flagos_device_info_t* info);
flagos_status_t DeviceMemory(int32_t device, uint64_t* out_free, uint64_t* out_total);
flagos_status_t DeviceSync(int32_t device);
flagos_status_t Versions(int64_t* out_driver, int64_t* out_runtime);
flagos_status_t MemoryAlloc(int32_t device, size_t size, void** out_pointer);
flagos_status_t MemoryFree(int32_t device, void* pointer);
flagos_status_t HostAlloc(size_t size, void** out_pointer);
flagos_status_t HostFree(void* pointer);
flagos_status_t HostRegister(void* pointer, size_t size);
flagos_status_t HostUnregister(void* pointer);
flagos_status_t PointerInfo(const void* pointer, flagos_pointer_info_t* info);
flagos_status_t Copy(void* dst, int32_t dst_device, const void* src, int32_t src_device, size_t size,
                     flagos_stream_t stream);
flagos_status_t Fill(void* dst, int32_t device, uint8_t value, size_t size, flagos_stream_t stream);
flagos_status_t StreamPriorityRange(int32_t device, int32_t* out_least, int32_t* out_greatest);
flagos_status_t StreamCreate(int32_t device, uint32_t flags, int32_t priority, flagos_stream_t* out_stream);
flagos_status_t StreamDestroy(flagos_stream_t stream);
flagos_status_t StreamQuery(flagos_stream_t stream);
flagos_status_t StreamSync(flagos_stream_t stream);
flagos_status_t StreamWait(flagos_stream_t stream, flagos_event_t event);
void* StreamNative(flagos_stream_t stream);
flagos_status_t StreamWrap(int32_t device, void* native, flagos_stream_t* out_stream);
flagos_status_t StreamHostFunc(flagos_stream_t stream, flagos_host_func_t func, void* user_data);
flagos_status_t EventCreate(int32_t device, uint32_t flags, flagos_event_t* out_event);
flagos_status_t EventDestroy(flagos_event_t event);
flagos_status_t EventRecord(flagos_event_t event, flagos_stream_t stream);
flagos_status_t EventQuery(flagos_event_t event);
flagos_status_t EventSync(flagos_event_t event);
flagos_status_t EventElapsed(flagos_event_t start, flagos_event_t end, float* out_ms);
flagos_status_t PeerCanAccess(int32_t device, int32_t peer, int32_t* out_can);
flagos_status_t PeerEnable(int32_t device, int32_t peer);
flagos_status_t MemoryGranularity(int32_t device, size_t* out_bytes);
flagos_status_t MemoryReserve(int32_t device, size_t size, void** out_pointer);
flagos_status_t MemoryRelease(int32_t device, void* pointer, size_t size);
flagos_status_t MemoryMap(int32_t device, void* pointer, size_t size);
flagos_status_t MemoryUnmap(int32_t device, void* pointer, size_t size);
// A device was given access to `owner`'s memory: what is mapped there already is opened to it as well.
flagos_status_t OpenMappings(const Where& where, int owner);

}  // namespace flagos_cuda_shaped
