// SPDX-License-Identifier: Apache-2.0
// CUDA: libcudart over libcuda. Measured with toolkit 13; toolkit 12 has the same names and numbers for what is used here
// (not measured).
#include "cuda_shaped/cuda_monitor.h"
#include "cuda_shaped/vendor.h"

namespace flagos_cuda_shaped {
namespace {

// The loader's own search first, then where the packages of a Python environment and the toolkit's installer put it.
constexpr const char* kRuntimeLibraries[] = {
    "libcudart.so.13",
    "libcudart.so.12",  // not measured
    "$ORIGIN/../../../nvidia/cu13/lib/libcudart.so.13",
    "$ORIGIN/../../../nvidia/cuda_runtime/lib/libcudart.so.12",  // not measured
    "/usr/local/cuda/lib64/libcudart.so.13",
    "/usr/local/cuda/lib64/libcudart.so.12",  // not measured
    "libcudart.so",
};
constexpr const char* kDriverLibraries[] = {"libcuda.so.1", "libcuda.so"};
constexpr const char* kDeviceNodes[] = {"/dev/nvidiactl", "/dev/dxg"};

constexpr NameRow kDriverNames[] = {
    {"Init", "cuInit"},
    {"DriverVersion", "cuDriverGetVersion"},
    {"DeviceCount", "cuDeviceGetCount"},
    {"DeviceName", "cuDeviceGetName"},
    {"DeviceTotalMemory", "cuDeviceTotalMem_v2"},
    {"DevicePeerReachable", "cuDeviceCanAccessPeer"},
    {"ContextRetain", "cuDevicePrimaryCtxRetain"},
    {"ContextState", "cuDevicePrimaryCtxGetState"},
    {"ContextCurrent", "cuCtxGetCurrent"},
    {"ContextPush", "cuCtxPushCurrent_v2"},
    {"ContextPop", "cuCtxPopCurrent_v2"},
    {"PointerAttribute", "cuPointerGetAttribute"},
    {"AddressGranularity", "cuMemGetAllocationGranularity"},
    {"AddressReserve", "cuMemAddressReserve"},
    {"AddressFree", "cuMemAddressFree"},
    {"PhysicalCreate", "cuMemCreate"},
    {"PhysicalRelease", "cuMemRelease"},
    {"AddressMap", "cuMemMap"},
    {"AddressUnmap", "cuMemUnmap"},
    {"AddressAccess", "cuMemSetAccess"},
    {"ErrorName", "cuGetErrorName"},
    {"ErrorString", "cuGetErrorString"},
};

constexpr ErrorRow kErrors[] = {
    {FLAGOS_NOT_READY, "cudaErrorNotReady", 600},
    {FLAGOS_INVALID_VALUE, "cudaErrorInvalidValue", 1},
    {FLAGOS_OUT_OF_MEMORY, "cudaErrorMemoryAllocation", 2},
    {FLAGOS_NOT_INITIALIZED, "cudaErrorInitializationError", 3},
    {FLAGOS_NOT_INITIALIZED, "cudaErrorCudartUnloading", 4},
    {FLAGOS_INVALID_VALUE, "cudaErrorInvalidMemcpyDirection", 21},
    {FLAGOS_NO_DEVICE, "cudaErrorNoDevice", 100},
    {FLAGOS_INVALID_DEVICE, "cudaErrorInvalidDevice", 101},
    {FLAGOS_INVALID_HANDLE, "cudaErrorInvalidResourceHandle", 400},
    {FLAGOS_ALREADY, "cudaErrorPeerAccessAlreadyEnabled", 704},
    {FLAGOS_ALREADY, "cudaErrorHostMemoryAlreadyRegistered", 712},
    {FLAGOS_INVALID_VALUE, "cudaErrorHostMemoryNotRegistered", 713},
    {FLAGOS_UNSUPPORTED, "cudaErrorNotSupported", 801},
    {FLAGOS_UNSUPPORTED, "cudaErrorPeerAccessUnsupported", 217},
    // From here on the context is gone for the rest of the process.
    {FLAGOS_DEVICE_LOST, "cudaErrorECCUncorrectable", 214},
    {FLAGOS_DEVICE_LOST, "cudaErrorNvlinkUncorrectable", 220},
    {FLAGOS_DEVICE_LOST, "cudaErrorIllegalAddress", 700},
    {FLAGOS_DEVICE_LOST, "cudaErrorLaunchTimeout", 702},
    {FLAGOS_DEVICE_LOST, "cudaErrorAssert", 710},
    {FLAGOS_DEVICE_LOST, "cudaErrorHardwareStackError", 714},
    {FLAGOS_DEVICE_LOST, "cudaErrorIllegalInstruction", 715},
    {FLAGOS_DEVICE_LOST, "cudaErrorMisalignedAddress", 716},
    {FLAGOS_DEVICE_LOST, "cudaErrorInvalidAddressSpace", 717},
    {FLAGOS_DEVICE_LOST, "cudaErrorInvalidPc", 718},
    {FLAGOS_DEVICE_LOST, "cudaErrorLaunchFailure", 719},
};

}  // namespace

constinit const Vendor kVendor = {
    .platform = "cuda",
    .implementation = "cuda_shaped over libcudart and libcuda, opened at run time",
    .prefix = "cuda",
    .runtime_libraries = kRuntimeLibraries,
    .driver_libraries = kDriverLibraries,
    .device_nodes = kDeviceNodes,
    .runtime_names = {},
    .driver_names = kDriverNames,
    .errors = kErrors,
    .attributes = {.compute_units = 16, .warp_size = 10, .capability_major = 75, .capability_minor = 76},
    .pointer_types = {},
    .range_attributes = {.start = 11, .size = 12},
    .arch_format = "sm_%d%d",
    .quirks = 0,
    .count_quietly = CountQuietly,
    .memory_quietly = MemoryQuietly,
};

}  // namespace flagos_cuda_shaped
