/* SPDX-License-Identifier: Apache-2.0
 *
 * The torch_fl driver interface, version 1: the only file a chip vendor has to read.
 *
 * A driver is a shared object that exports one symbol, `flagos_driver_entry_v1`, which hands out a
 * constant table of C functions. torch_fl finds it by name under its `drivers/` folder
 * (`FLAGOS_DRIVER=<name>`) or anywhere on disk (`FLAGOS_DRIVER_PLUGIN=/path/libmine.so`). The
 * skeleton to start from, with the porting guide as its README, is `drivers/null`; the suite that
 * proves a driver is `conformance/driver`.
 *
 * Rules that hold for every function of the table, unless its comment says otherwise:
 *
 *  - It returns a flagos_status_t. Anything but FLAGOS_OK and FLAGOS_NOT_READY also fills the calling
 *    thread's `last_error`. No C++ exception, signal or abort may leave a driver.
 *  - Any thread may call it at any time after `init` returned, without external locking.
 *  - Devices are named in every call. There is no current device in this interface: a driver whose
 *    vendor library has one sets and restores it inside the call.
 *  - Out parameters are named `out_*`, may not be NULL, and are written only on FLAGOS_OK.
 *  - Sizes and offsets are bytes. A size of 0 is valid everywhere and does nothing.
 *  - A NULL entry means "this device cannot". Each optional entry says what the runtime does then.
 *
 * Evolution: fields are only ever appended; `struct_size` tells the reader how many exist and a
 * missing entry counts as NULL. A change of meaning needs a new abi_version and a new entry symbol.
 *
 * Compiles as C11 and as C++20.
 */
#ifndef TORCH_FL_DRIVER_H_
#define TORCH_FL_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FLAGOS_DRIVER_ABI_VERSION 1u
#define FLAGOS_DRIVER_ENTRY_SYMBOL "flagos_driver_entry_v1"

#if defined(_WIN32)
#define FLAGOS_EXPORT __declspec(dllexport)
#else
#define FLAGOS_EXPORT __attribute__((visibility("default")))
#endif

/*===-- Status ------------------------------------------------------------------------------===*/

/* The numbers are part of the interface and never change. */
typedef enum flagos_status_t {
  FLAGOS_OK = 0,
  FLAGOS_NOT_READY = 1,       /* work is still pending; never becomes the last error */
  FLAGOS_INVALID_VALUE = 2,   /* an argument is out of range, or a pointer is not what it claims */
  FLAGOS_INVALID_DEVICE = 3,  /* device index outside 0 .. device_count-1 */
  FLAGOS_OUT_OF_MEMORY = 4,
  FLAGOS_NO_DEVICE = 5,       /* the machine has no device of this kind */
  FLAGOS_INVALID_HANDLE = 6,  /* stream or event that is destroyed, foreign or NULL */
  FLAGOS_UNSUPPORTED = 7,     /* this device cannot do it, for ever */
  FLAGOS_NOT_INITIALIZED = 8, /* called before init, or in a forked child */
  FLAGOS_DEVICE_LOST = 9,     /* sticky: every later call on this device returns it too */
  FLAGOS_LIBRARY_MISSING = 10, /* a vendor library could not be opened */
  FLAGOS_SYMBOL_MISSING = 11,  /* a vendor library lacks a required function */
  FLAGOS_VENDOR_ERROR = 12,    /* the vendor's own error; see vendor_code and vendor_text */
  FLAGOS_ALREADY = 13,         /* the state asked for already holds (peer access, registration) */
  FLAGOS_UNORDERED = 14        /* validate layer: an access that nothing orders behind an earlier one */
} flagos_status_t;

/* The calling thread's last failure. Strings live until the thread's next driver call. */
typedef struct flagos_error_t {
  uint32_t struct_size;
  flagos_status_t status;
  int32_t device;           /* -1 when no device is concerned */
  int64_t vendor_code;      /* 0 when the driver itself refused */
  const char* vendor_text;  /* the vendor's words, or the driver's; never NULL */
  const char* function;     /* table entry that failed, e.g. "memory_alloc"; never NULL */
} flagos_error_t;

/*===-- Capabilities ------------------------------------------------------------------------===*/

/* Facts about a driver, fixed once init returned. They are what callers and tests ask; nobody ever
 * asks for a driver's name. */
enum {
  /* Device memory is also visible to the host, at (device address + host_view_offset). Turns on
   * running CPU kernels in place. */
  FLAGOS_CAP_HOST_VIEW = 1u << 0,
  /* copy and fill with a stream return before the bytes moved. Without it they complete inside
   * the call and events complete at once. */
  FLAGOS_CAP_ASYNC = 1u << 1,
  /* event_elapsed measures device time. Without it the runtime uses the host clock and says so. */
  FLAGOS_CAP_EVENT_TIMING = 1u << 2,
  /* stream_create honours priorities. Without it the range is 0..0. */
  FLAGOS_CAP_STREAM_PRIORITY = 1u << 3,
  /* A device pointer may be used while another device is current (unified addressing). */
  FLAGOS_CAP_UNIFIED_ADDRESS = 1u << 4,
  /* Host accesses to device memory are caught and reported by access_fault_take. */
  FLAGOS_CAP_ACCESS_FAULTS = 1u << 5,
  /* kernel_begin and kernel_end must be called round every kernel that the host runs in place (with HOST_VIEW only).
   * Without it such a kernel is complete when it returns, and draining its stream beforehand is all that order needs. */
  FLAGOS_CAP_KERNEL_ORDER = 1u << 6
};

/*===-- Devices -----------------------------------------------------------------------------===*/

/* Which fields of flagos_device_info_t a driver could fill. */
enum {
  FLAGOS_INFO_NAME = 1u << 0,
  FLAGOS_INFO_TOTAL_MEMORY = 1u << 1,
  FLAGOS_INFO_ARCH = 1u << 2,
  FLAGOS_INFO_CAPABILITY = 1u << 3,
  FLAGOS_INFO_COMPUTE_UNITS = 1u << 4,
  FLAGOS_INFO_WARP_SIZE = 1u << 5,
  FLAGOS_INFO_PCI = 1u << 6
};

typedef struct flagos_device_info_t {
  uint32_t struct_size;       /* set by the caller; a driver writes no field beyond it */
  uint32_t valid;             /* FLAGOS_INFO_* bits */
  char name[128];             /* marketing name, UTF-8, zero terminated */
  char arch[64];              /* what a compiler calls it, e.g. "sm_90" */
  uint64_t total_memory;      /* bytes */
  int32_t capability_major;
  int32_t capability_minor;
  int32_t compute_units;      /* multiprocessors, cores: what occupancy is counted in */
  int32_t warp_size;          /* lanes that run in lock step */
  char pci[32];               /* "0000:17:00.0" */
} flagos_device_info_t;

/*===-- Pointers ----------------------------------------------------------------------------===*/

typedef enum flagos_memory_space_t {
  FLAGOS_SPACE_UNKNOWN = 0, /* ordinary host memory, or an address nobody knows */
  FLAGOS_SPACE_DEVICE = 1,
  FLAGOS_SPACE_PINNED = 2   /* page-locked host memory: host_alloc or host_register */
} flagos_memory_space_t;

typedef struct flagos_pointer_info_t {
  uint32_t struct_size;
  flagos_memory_space_t space;
  int32_t device;           /* owner; -1 when the space is not DEVICE */
  void* base;               /* start of the allocation that holds the pointer, or NULL if unknown */
  size_t size;              /* bytes of that allocation, 0 if unknown */
} flagos_pointer_info_t;

/* A host access to device memory that the device caught (FLAGOS_CAP_ACCESS_FAULTS). */
typedef struct flagos_access_fault_t {
  uint32_t struct_size;
  int32_t device;
  void* address;            /* the device address that was touched */
  int32_t is_write;         /* 1 write, 0 read, -1 unknown */
} flagos_access_fault_t;

/*===-- Streams and events ------------------------------------------------------------------===*/

typedef struct flagos_stream_s* flagos_stream_t; /* NULL: the call is synchronous and ordered */
typedef struct flagos_event_s* flagos_event_t;

enum { FLAGOS_STREAM_DEFAULT = 0 };
enum {
  FLAGOS_EVENT_DEFAULT = 0,
  FLAGOS_EVENT_TIMING = 1u << 0, /* event_elapsed will be asked for */
  FLAGOS_EVENT_BLOCKING = 1u << 1 /* event_sync should sleep rather than spin */
};

typedef void (*flagos_host_func_t)(void* user_data);

/* Stands for the host wherever a device index names one side of a copy. */
#define FLAGOS_HOST (-1)

/*===-- Kernels that the host runs in place ---------------------------------------------------===*/

/* Bytes that a kernel reads or writes: device addresses. */
typedef struct flagos_access_t {
  const void* pointer;
  size_t size;
  int32_t is_write; /* 1 also when it reads the same bytes */
} flagos_access_t;

typedef struct flagos_kernel_t {
  uint32_t struct_size;
  const char* name; /* operator, for messages; read before the call returns */
  const flagos_access_t* accesses;
  size_t access_count;
} flagos_kernel_t;

/*===-- Options -----------------------------------------------------------------------------===*/

/* `FLAGOS_<DRIVER>_<KEY>=value` reaches the driver as {"key", "value"}, key in lower case. An unknown
 * key or a value out of range makes init return FLAGOS_INVALID_VALUE with a vendor_text that lists
 * what is known. */
typedef struct flagos_option_t {
  const char* key;
  const char* value;
} flagos_option_t;

/*===-- The table ---------------------------------------------------------------------------===*/

typedef struct flagos_driver_v1_t {
  uint32_t struct_size; /* sizeof(flagos_driver_v1_t) as the driver knew it */
  uint32_t abi_version; /* FLAGOS_DRIVER_ABI_VERSION */

  const char* platform;       /* "host", "null", or the vendor's short name */
  const char* implementation; /* free text: which source, which vendor library, which version */

  /* -- Life cycle ------------------------------------------------------------------------- */

  /* Required. Called once per process before anything else but last_error. Opens vendor libraries and reads options;
   * must not create a context on any device. A machine without a device is not an error here: device_count says 0. */
  flagos_status_t (*init)(const flagos_option_t* options, size_t option_count);
  /* Optional. Process exit, after the runtime stopped using the driver. Must return even if work is in flight.
   * Is not called in a forked child. */
  void (*at_exit)(void);
  /* Required. FLAGOS_CAP_* bits; constant after init. */
  uint64_t (*capabilities)(void);
  /* Optional. Vendor driver and runtime versions as decimal numbers (13000 = 13.0). NULL: unknown. */
  flagos_status_t (*versions)(int64_t* out_driver, int64_t* out_runtime);

  /* -- Devices: queries create no context --------------------------------------------------- */

  /* Required. */
  flagos_status_t (*device_count)(int32_t* out_count);
  /* Required. The caller sets info->struct_size. */
  flagos_status_t (*device_info)(int32_t device, flagos_device_info_t* info);
  /* Optional. Free and total bytes. NULL: the runtime answers from total_memory and its own allocations. */
  flagos_status_t (*device_memory)(int32_t device, uint64_t* out_free, uint64_t* out_total);
  /* Required. Waits for all streams of the device. */
  flagos_status_t (*device_sync)(int32_t device);

  /* -- Memory --------------------------------------------------------------------------------- */

  /* Required. 0 bytes gives a NULL pointer. The address is aligned to memory_alignment() at least. */
  flagos_status_t (*memory_alloc)(int32_t device, size_t size, void** out_pointer);
  /* Required. NULL is fine. Waits for work that still uses the block, or keeps the bytes until it ends. In a forked
   * child: does nothing, returns OK. */
  flagos_status_t (*memory_free)(int32_t device, void* pointer);
  /* Optional. Guaranteed alignment of memory_alloc, bytes. NULL: 64. */
  size_t (*memory_alignment)(void);
  /* Required with FLAGOS_CAP_HOST_VIEW. host address = device address + offset, for every pointer of memory_alloc. */
  flagos_status_t (*host_view_offset)(int32_t device, ptrdiff_t* out_offset);
  /* Optional pair. Page-locked host memory. NULL: pageable memory is used and copies from it are staged. */
  flagos_status_t (*host_alloc)(size_t size, void** out_pointer);
  flagos_status_t (*host_free)(void* pointer);
  /* Optional pair. Page-locks memory somebody else allocated. NULL: left as it is. */
  flagos_status_t (*host_register)(void* pointer, size_t size);
  flagos_status_t (*host_unregister)(void* pointer);
  /* Optional. Host pointers are FLAGOS_SPACE_UNKNOWN, not an error. NULL: the runtime keeps its own interval table. */
  flagos_status_t (*pointer_info)(const void* pointer, flagos_pointer_info_t* info);
  /* Required with FLAGOS_CAP_ACCESS_FAULTS. Takes the oldest recorded fault; FLAGOS_NOT_READY when there is none.
   * Called before every operator: must cost one load when nothing happened. */
  flagos_status_t (*access_fault_take)(flagos_access_fault_t* out_fault);

  /* -- Copies and fills ------------------------------------------------------------------------- */

  /* Required. Either side is a device index or FLAGOS_HOST, never both FLAGOS_HOST. The driver checks that each pointer
   * lies where its side says (FLAGOS_INVALID_VALUE). The ranges may not overlap. With a stream (which belongs to one of
   * the two devices) the copy is ordered on it; a pageable host source is read before the call returns. Without one, it
   * is complete when the call returns. */
  flagos_status_t (*copy)(void* dst, int32_t dst_device, const void* src, int32_t src_device, size_t size,
                          flagos_stream_t stream);
  /* Required. Sets each byte. */
  flagos_status_t (*fill)(void* dst, int32_t device, uint8_t value, size_t size, flagos_stream_t stream);

  /* -- Streams: in-order queues -------------------------------------------------------------------- */

  /* Optional. Lowest number is the highest priority. NULL: 0..0. */
  flagos_status_t (*stream_priority_range)(int32_t device, int32_t* out_least, int32_t* out_greatest);
  /* Required. */
  flagos_status_t (*stream_create)(int32_t device, uint32_t flags, int32_t priority, flagos_stream_t* out_stream);
  /* Required. Pending work still runs. */
  flagos_status_t (*stream_destroy)(flagos_stream_t stream);
  /* Required. FLAGOS_OK when idle, FLAGOS_NOT_READY while work is pending. */
  flagos_status_t (*stream_query)(flagos_stream_t stream);
  /* Required. */
  flagos_status_t (*stream_sync)(flagos_stream_t stream);
  /* Required. Later work of the stream waits for the event; an event never recorded is complete. Never blocks the host. */
  flagos_status_t (*stream_wait)(flagos_stream_t stream, flagos_event_t event);
  /* Optional. What vendor operator, collective and compiler libraries take as a stream. NULL: the handle itself. */
  void* (*stream_native)(flagos_stream_t stream);
  /* Optional. Wraps a stream made by somebody else; destroy frees the wrapper only. NULL: external streams are refused. */
  flagos_status_t (*stream_wrap)(int32_t device, void* native, flagos_stream_t* out_stream);
  /* Optional. Runs func on a driver thread when the stream reaches it; func may not call the driver. NULL: an event and
   * a watcher thread of the runtime. */
  flagos_status_t (*stream_host_func)(flagos_stream_t stream, flagos_host_func_t func, void* user_data);

  /* -- Events: points in a stream ---------------------------------------------------------------------- */

  /* Required. */
  flagos_status_t (*event_create)(int32_t device, uint32_t flags, flagos_event_t* out_event);
  /* Required. A pending event may be destroyed. */
  flagos_status_t (*event_destroy)(flagos_event_t event);
  /* Required. Recording again moves the event. */
  flagos_status_t (*event_record)(flagos_event_t event, flagos_stream_t stream);
  /* Required. FLAGOS_OK when complete or never recorded. */
  flagos_status_t (*event_query)(flagos_event_t event);
  /* Required. Returns at once when never recorded. */
  flagos_status_t (*event_sync)(flagos_event_t event);
  /* Optional. Milliseconds from start to end. FLAGOS_INVALID_HANDLE if either lacks FLAGOS_EVENT_TIMING or was never
   * recorded, FLAGOS_NOT_READY while either is pending. NULL: host clock. */
  flagos_status_t (*event_elapsed)(flagos_event_t start, flagos_event_t end, float* out_ms);

  /* -- Peers ---------------------------------------------------------------------------------------------- */

  /* Optional pair. NULL: copies between devices are staged through the host. */
  flagos_status_t (*peer_can_access)(int32_t device, int32_t peer, int32_t* out_can);
  flagos_status_t (*peer_enable)(int32_t device, int32_t peer);

  /* -- Errors ------------------------------------------------------------------------------------------------ */

  /* Required. The calling thread's last failure, never NULL; status is FLAGOS_OK when there was none. Usable before init. */
  const flagos_error_t* (*last_error)(void);

  /* -- Kernels that the host runs in place (required with FLAGOS_CAP_KERNEL_ORDER) -------------------------------- */

  /* Returns when everything queued on the stream, and what that waits for, has happened, so that the caller may run a
   * kernel on the host view. Is not a synchronisation of the program: it orders nothing else. */
  flagos_status_t (*kernel_begin)(flagos_stream_t stream);
  /* The kernel has run on the calling thread. Takes its place in the stream's order: later events and syncs of the stream
   * cover it, and may stay pending for a while. FLAGOS_UNORDERED when a checker finds that it raced with other work. */
  flagos_status_t (*kernel_end)(flagos_stream_t stream, const flagos_kernel_t* kernel);

  /* -- Address space apart from memory (optional group: all five or none) ------------------------------------------- */

  /* Sizes and addresses below are multiples of it. */
  flagos_status_t (*memory_granularity)(int32_t device, size_t* out_bytes);
  /* Addresses without memory behind them. Copies, fills and kernels may use a mapped part like memory of memory_alloc,
   * across the borders of mappings that touch. */
  flagos_status_t (*memory_reserve)(int32_t device, size_t size, void** out_pointer);
  /* Nothing may be mapped in it any more. */
  flagos_status_t (*memory_release)(int32_t device, void* pointer, size_t size);
  /* Puts fresh memory behind part of a reservation; FLAGOS_OUT_OF_MEMORY as memory_alloc. */
  flagos_status_t (*memory_map)(int32_t device, void* pointer, size_t size);
  /* Takes back whole mappings. Waits for work as memory_free does. */
  flagos_status_t (*memory_unmap)(int32_t device, void* pointer, size_t size);

  /* Append new entries above this line. */
} flagos_driver_v1_t;

/* The fields a loader of this version needs at least: a table shorter than this is refused as truncated. */
#define FLAGOS_DRIVER_V1_MIN_SIZE offsetof(flagos_driver_v1_t, peer_can_access)

/* The entry point, exported with C linkage under FLAGOS_DRIVER_ENTRY_SYMBOL. `abi_version` is the newest the caller knows.
 * Returns FLAGOS_UNSUPPORTED when the driver cannot serve it. The table lives as long as the process. */
typedef flagos_status_t (*flagos_driver_entry_t)(uint32_t abi_version, const flagos_driver_v1_t** out_driver);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TORCH_FL_DRIVER_H_ */
