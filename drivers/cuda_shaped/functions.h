// SPDX-License-Identifier: Apache-2.0
// The functions that the family shares, by logical name. A vendor's name for one is its prefix and the logical name unless
// its table says otherwise. Only what the driver calls; types are ABI-equal stand-ins for the vendors' own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flagos_cuda_shaped {

using VendorStream = void*;
using VendorEvent = void*;
using VendorContext = void*;
using VendorAddress = uint64_t;  // a device address as the driver library takes it
using VendorHandle = uint64_t;  // physical memory
using HostFunction = void (*)(void*);

// Numbers that all members share.
inline constexpr int kCopyHostToDevice = 1;
inline constexpr int kCopyDeviceToHost = 2;
inline constexpr int kCopyWithinDevice = 3;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostAllocPortable = 1;  // page-locked for every device

inline constexpr bool kRequired = true;
inline constexpr bool kOptional = false;

// The runtime library. X(logical name, required, arguments); every function returns the vendor's error number.
// clang-format off
#define CUDA_SHAPED_RUNTIME(X)                                                                   \
  X(GetDeviceCount, kRequired, (int*))                                                           \
  X(GetDevice, kRequired, (int*))                                                                \
  X(SetDevice, kRequired, (int))                                                                 \
  X(DeviceSynchronize, kRequired, ())                                                            \
  X(DeviceGetAttribute, kOptional, (int*, int attribute, int device))                            \
  X(GetDeviceProperties, kOptional, (void*, int device))                                         \
  X(DeviceGetPCIBusId, kOptional, (char*, int size, int device))                                 \
  X(RuntimeGetVersion, kOptional, (int*))                                                        \
  X(DriverGetVersion, kOptional, (int*))                                                         \
  X(MemGetInfo, kOptional, (size_t* free_bytes, size_t* total_bytes))                            \
  X(Malloc, kRequired, (void**, size_t))                                                         \
  X(Free, kRequired, (void*))                                                                    \
  X(HostAlloc, kOptional, (void**, size_t, unsigned flags))                                      \
  X(FreeHost, kOptional, (void*))                                                                \
  X(HostRegister, kOptional, (void*, size_t, unsigned flags))                                    \
  X(HostUnregister, kOptional, (void*))                                                          \
  X(PointerGetAttributes, kRequired, (void* attributes, const void*))                            \
  X(MemcpyAsync, kRequired, (void* dst, const void* src, size_t, int kind, VendorStream))        \
  X(MemcpyPeerAsync, kOptional, (void*, int dst_device, const void*, int src_device, size_t, VendorStream)) \
  X(MemsetAsync, kRequired, (void*, int value, size_t, VendorStream))                            \
  X(StreamCreateWithFlags, kRequired, (VendorStream*, unsigned flags))                           \
  X(StreamCreateWithPriority, kOptional, (VendorStream*, unsigned flags, int priority))          \
  X(DeviceGetStreamPriorityRange, kOptional, (int* least, int* greatest))                        \
  X(StreamDestroy, kRequired, (VendorStream))                                                    \
  X(StreamQuery, kRequired, (VendorStream))                                                      \
  X(StreamSynchronize, kRequired, (VendorStream))                                                \
  X(StreamWaitEvent, kRequired, (VendorStream, VendorEvent, unsigned flags))                     \
  X(LaunchHostFunc, kOptional, (VendorStream, HostFunction, void*))                              \
  X(EventCreateWithFlags, kRequired, (VendorEvent*, unsigned flags))                             \
  X(EventDestroy, kRequired, (VendorEvent))                                                      \
  X(EventRecord, kRequired, (VendorEvent, VendorStream))                                         \
  X(EventQuery, kRequired, (VendorEvent))                                                        \
  X(EventSynchronize, kRequired, (VendorEvent))                                                  \
  X(EventElapsedTime, kOptional, (float* ms, VendorEvent, VendorEvent))                          \
  X(DeviceCanAccessPeer, kOptional, (int*, int device, int peer))                                \
  X(DeviceEnablePeerAccess, kOptional, (int peer, unsigned flags))                               \
  X(GetLastError, kRequired, ())

// The driver library below the runtime, where the vendor has one: contexts, queries without a context, address space. All
// optional: without it the device guard is GetDevice and SetDevice, and entries that need it are NULL or less exact.
#define CUDA_SHAPED_DRIVER(X)                                                                    \
  X(Init, kOptional, (unsigned flags))                                                           \
  X(DriverVersion, kOptional, (int*))                                                            \
  X(DeviceCount, kOptional, (int*))                                                              \
  X(DeviceName, kOptional, (char*, int size, int device))                                        \
  X(DeviceTotalMemory, kOptional, (size_t*, int device))                                         \
  X(DevicePeerReachable, kOptional, (int*, int device, int peer))                                \
  X(ContextRetain, kOptional, (VendorContext*, int device))                                      \
  X(ContextState, kOptional, (int device, unsigned* flags, int* active))                         \
  X(ContextCurrent, kOptional, (VendorContext*))                                                 \
  X(ContextPush, kOptional, (VendorContext))                                                     \
  X(ContextPop, kOptional, (VendorContext*))                                                     \
  X(PointerAttribute, kOptional, (void* data, int attribute, VendorAddress))                     \
  X(AddressGranularity, kOptional, (size_t*, const void* properties, int option))                \
  X(AddressReserve, kOptional, (VendorAddress*, size_t, size_t alignment, VendorAddress hint, unsigned long long flags)) \
  X(AddressFree, kOptional, (VendorAddress, size_t))                                             \
  X(PhysicalCreate, kOptional, (VendorHandle*, size_t, const void* properties, unsigned long long flags)) \
  X(PhysicalRelease, kOptional, (VendorHandle))                                                  \
  X(AddressMap, kOptional, (VendorAddress, size_t, size_t offset, VendorHandle, unsigned long long flags)) \
  X(AddressUnmap, kOptional, (VendorAddress, size_t))                                            \
  X(AddressAccess, kOptional, (VendorAddress, size_t, const void* descriptions, size_t count))
// clang-format on

// Functions of either library that return text.
using RuntimeText = const char* (*)(int code);
using DriverText = int (*)(int code, const char** text);

// NOLINTNEXTLINE(bugprone-macro-parentheses): the arguments are parts of a declaration
#define CUDA_SHAPED_SLOT(logical, required, arguments) int(*logical) arguments = nullptr;
struct RuntimeFunctions {
  CUDA_SHAPED_RUNTIME(CUDA_SHAPED_SLOT)
  RuntimeText GetErrorName = nullptr;
  RuntimeText GetErrorString = nullptr;
};
struct DriverFunctions {
  CUDA_SHAPED_DRIVER(CUDA_SHAPED_SLOT)
  DriverText ErrorName = nullptr;
  DriverText ErrorString = nullptr;
};
#undef CUDA_SHAPED_SLOT

}  // namespace flagos_cuda_shaped
