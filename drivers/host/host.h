// SPDX-License-Identifier: Apache-2.0
// The simulated accelerator: what its files share.
//
// Lock order: the list of live streams, Device::mutex, a stream's, an event's. No lock is held while a host function runs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "sdk/last_error.h"
#include "torch_fl/driver.h"

namespace flagos_host {

using flagos_sdk::Fail;

inline constexpr int kMaxDevices = 64;

struct Config {
  int devices = 1;
  uint64_t memory = 0;  // bytes of each device
  bool protect = false;
  bool poison = false;
  bool misalign = false;
  bool lazy = false;  // queue mode
};

struct Range {
  uintptr_t begin = 0;
  size_t size = 0;
  bool Holds(uintptr_t address, size_t bytes) const {
    return address >= begin && address - begin <= size && bytes <= size - (address - begin);
  }
};

// The address space of one device: `device` is what callers get, `host` is where the bytes are always accessible.
struct Arena {
  uintptr_t device = 0;
  uintptr_t host = 0;
  size_t size = 0;  // of address space, more than the device's memory
  bool Holds(uintptr_t address) const { return address - device < size; }
};

// Maps a device's arena; FLAGOS_OK or a recorded failure.
flagos_status_t MapArena(int device, Arena* arena);
// Gives the bytes of whole pages back to the system; `device` is a device address.
void ReleasePages(const Arena& arena, uintptr_t device, size_t size);

struct Block {
  uintptr_t span = 0;  // first page
  size_t span_size = 0;
  size_t size = 0;  // asked for
};

// Address space of memory_reserve. A mapping is as large as the memory_map call that made it.
struct Reservation {
  size_t size = 0;
  std::map<uintptr_t, size_t> mappings;
};

struct Device {
  std::atomic<uint64_t> pending{0};  // tasks on its streams that have not finished
  std::mutex mutex;  // guards all below; the arena is constant once `mapped` is true
  std::atomic<bool> mapped{false};
  Arena arena;
  uint64_t used = 0;  // bytes of whole pages, in blocks and mappings
  std::map<uintptr_t, size_t> free_spans;  // by address, never adjacent
  std::map<uintptr_t, Block> blocks;  // by the address handed out
  std::map<uintptr_t, Reservation> reservations;  // by address
};

struct State {
  Config config;
  std::array<Device, kMaxDevices> devices;
  std::atomic<uint64_t> peers_enabled[kMaxDevices];
  std::mutex pinned_mutex;
  std::map<uintptr_t, size_t> pinned;  // host_alloc
  std::map<uintptr_t, size_t> registered;  // host_register
};

// Made by init and never destroyed: worker threads and late frees use it until the process is gone.
extern std::atomic<State*> g_state;
inline State& TheState() { return *g_state.load(std::memory_order_relaxed); }

// ---- Process: init and fork
extern std::atomic<bool> g_forked;  // this is a child of a process that had memory or a stream
// Before the first memory or stream is made.
void ArmFork();
// FLAGOS_NOT_INITIALIZED before init and in a forked child.
flagos_status_t CheckReady(const char* function);
flagos_status_t CheckDevice(const char* function, int device);

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

// ---- Memory
inline Device& DeviceOf(int device) { return TheState().devices[static_cast<size_t>(device)]; }

// Up to OutOfMemory, with the device's mutex held.
flagos_status_t EnsureArena(int device);
// First fit; 0 when no span is long enough.
uintptr_t TakeSpan(Device& state, size_t size, size_t alignment);
void ReturnSpan(Device& state, uintptr_t begin, size_t size);
// What fresh and freed memory looks like. `begin` is a device address; without `poison` fresh memory is zero.
void MakeFresh(Device& state, uintptr_t begin, size_t size);
void MakeFreed(Device& state, uintptr_t begin, size_t size);
flagos_status_t OutOfMemory(const char* function, int device, size_t size);

// Host address of `size` bytes at the device address, or 0 when they are not inside one block or one run of mappings.
uintptr_t HostAddress(int device, const void* pointer, size_t size);
// The device whose addresses include this one, or -1.
int OwnerOf(const void* pointer);
// The device whose host view includes this address, or -1.
int ViewOf(uintptr_t address);
enum class HostKind { kPageable, kPinned, kPastPinned };  // the last: begins in a host_alloc block and ends beyond it
HostKind KindOf(const void* pointer, size_t size);
// Waits for everything queued on the device's streams, or on all.
void WaitForStreams(int device);
void WaitForAllStreams();
// True on a worker of this driver: there nothing that waits may be called.
bool OnWorker();

// ---- Fault handler
flagos_status_t InstallFaultHandler();
// Puts the handler back on top if somebody installed theirs over it. Cheap enough for copies and allocations.
void RaiseFaultHandler();
void RemoveFaultHandler();
void WatchArena(int device, const Arena& arena);
// Protects pages of a freed block again that the handler had opened.
void ForgetFaults(uintptr_t begin, size_t size);

// ---- Table entries
flagos_status_t DeviceCount(int32_t* out_count);
flagos_status_t DeviceInfo(int32_t device, flagos_device_info_t* info);
flagos_status_t DeviceMemory(int32_t device, uint64_t* out_free, uint64_t* out_total);
flagos_status_t DeviceSync(int32_t device);
flagos_status_t MemoryAlloc(int32_t device, size_t size, void** out_pointer);
flagos_status_t MemoryFree(int32_t device, void* pointer);
size_t MemoryAlignment();
flagos_status_t HostViewOffset(int32_t device, ptrdiff_t* out_offset);
flagos_status_t MemoryGranularity(int32_t device, size_t* out_bytes);
flagos_status_t MemoryReserve(int32_t device, size_t size, void** out_pointer);
flagos_status_t MemoryRelease(int32_t device, void* pointer, size_t size);
flagos_status_t MemoryMap(int32_t device, void* pointer, size_t size);
flagos_status_t MemoryUnmap(int32_t device, void* pointer, size_t size);
flagos_status_t HostAlloc(size_t size, void** out_pointer);
flagos_status_t HostFree(void* pointer);
flagos_status_t HostRegister(void* pointer, size_t size);
flagos_status_t HostUnregister(void* pointer);
flagos_status_t PointerInfo(const void* pointer, flagos_pointer_info_t* info);
flagos_status_t AccessFaultTake(flagos_access_fault_t* out_fault);
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
flagos_status_t KernelBegin(flagos_stream_t stream);
flagos_status_t KernelEnd(flagos_stream_t stream, const flagos_kernel_t* kernel);
flagos_status_t PeerCanAccess(int32_t device, int32_t peer, int32_t* out_can);
flagos_status_t PeerEnable(int32_t device, int32_t peer);

}  // namespace flagos_host
