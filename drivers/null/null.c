/* SPDX-License-Identifier: Apache-2.0
 *
 * The skeleton of a driver: it finds no device and says so from every entry. README.md beside it is the porting guide.
 * "PORT:" marks what a real driver fills in.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "torch_fl/driver.h"

/*===-- Errors: one slot for each thread -----------------------------------------------------===*/

static _Thread_local char error_text[256];
static _Thread_local flagos_error_t error = {sizeof(flagos_error_t), FLAGOS_OK, -1, 0, "", ""};

static flagos_status_t fail(flagos_status_t status, const char* function, int32_t device, const char* text) {
  snprintf(error_text, sizeof error_text, "%s", text);
  error.status = status;
  error.device = device;
  error.vendor_code = 0; /* PORT: the vendor's number, with its text below */
  error.vendor_text = error_text;
  error.function = function;
  return status;
}

static const flagos_error_t* last_error(void) { return &error; }

static atomic_bool initialized;

static flagos_status_t not_initialized(const char* function) {
  return fail(FLAGOS_NOT_INITIALIZED, function, -1, "init was not called");
}

/* PORT: true for 0 .. device_count-1. */
static flagos_status_t no_device(const char* function, int32_t device) {
  if (!atomic_load(&initialized)) return not_initialized(function);
  return fail(FLAGOS_INVALID_DEVICE, function, device, "the null driver has no device");
}

static flagos_status_t no_handle(const char* function) {
  return fail(FLAGOS_INVALID_HANDLE, function, -1, "the null driver never made a stream or event");
}

/*===-- Life cycle ----------------------------------------------------------------------------===*/

static flagos_status_t init(const flagos_option_t* options, size_t option_count) {
  /* PORT: dlopen the vendor's libraries; FLAGOS_LIBRARY_MISSING or FLAGOS_SYMBOL_MISSING when that fails. Make no
   * context. Read options; each one you do not know is an error. */
  if (option_count > 0) {
    char text[sizeof error_text];
    snprintf(text, sizeof text, "unknown option %s=%s; this driver has none", options[0].key, options[0].value);
    return fail(FLAGOS_INVALID_VALUE, "init", -1, text);
  }
  if (atomic_exchange(&initialized, true)) return fail(FLAGOS_ALREADY, "init", -1, "init was called before");
  return FLAGOS_OK;
}

static uint64_t capabilities(void) { return 0; /* PORT: FLAGOS_CAP_* bits that hold */ }

/*===-- Devices --------------------------------------------------------------------------------===*/

static flagos_status_t device_count(int32_t* out_count) {
  if (!atomic_load(&initialized)) return not_initialized("device_count");
  *out_count = 0; /* PORT: ask the vendor; without a board this stays 0 and FLAGOS_OK */
  return FLAGOS_OK;
}

static flagos_status_t device_info(int32_t device, flagos_device_info_t* info) {
  (void)info; /* PORT: fill what you know, set the matching FLAGOS_INFO_* bits, respect info->struct_size */
  return no_device("device_info", device);
}

static flagos_status_t device_sync(int32_t device) { return no_device("device_sync", device); }

/*===-- Memory ----------------------------------------------------------------------------------===*/

static flagos_status_t memory_alloc(int32_t device, size_t size, void** out_pointer) {
  (void)size;
  (void)out_pointer;
  return no_device("memory_alloc", device);
}

static flagos_status_t memory_free(int32_t device, void* pointer) {
  /* PORT: in a forked child return FLAGOS_OK and touch nothing. */
  return pointer == NULL ? FLAGOS_OK : no_device("memory_free", device);
}

static flagos_status_t copy(void* dst, int32_t dst_device, const void* src, int32_t src_device, size_t size,
                            flagos_stream_t stream) {
  (void)dst;
  (void)src;
  (void)size;
  (void)stream;
  if (dst_device == FLAGOS_HOST && src_device == FLAGOS_HOST) {
    return fail(FLAGOS_INVALID_VALUE, "copy", -1, "neither side is a device");
  }
  return no_device("copy", dst_device != FLAGOS_HOST ? dst_device : src_device);
}

static flagos_status_t fill(void* dst, int32_t device, uint8_t value, size_t size, flagos_stream_t stream) {
  (void)dst;
  (void)value;
  (void)size;
  (void)stream;
  return no_device("fill", device);
}

/*===-- Streams and events ------------------------------------------------------------------------===*/

static flagos_status_t stream_create(int32_t device, uint32_t flags, int32_t priority, flagos_stream_t* out_stream) {
  (void)flags;
  (void)priority;
  (void)out_stream;
  return no_device("stream_create", device);
}

static flagos_status_t stream_destroy(flagos_stream_t stream) {
  (void)stream;
  return no_handle("stream_destroy");
}

static flagos_status_t stream_query(flagos_stream_t stream) {
  (void)stream;
  return no_handle("stream_query");
}

static flagos_status_t stream_sync(flagos_stream_t stream) {
  (void)stream;
  return no_handle("stream_sync");
}

static flagos_status_t stream_wait(flagos_stream_t stream, flagos_event_t event) {
  (void)stream;
  (void)event;
  return no_handle("stream_wait");
}

static flagos_status_t event_create(int32_t device, uint32_t flags, flagos_event_t* out_event) {
  (void)flags;
  (void)out_event;
  return no_device("event_create", device);
}

static flagos_status_t event_destroy(flagos_event_t event) {
  (void)event;
  return no_handle("event_destroy");
}

static flagos_status_t event_record(flagos_event_t event, flagos_stream_t stream) {
  (void)event;
  (void)stream;
  return no_handle("event_record");
}

static flagos_status_t event_query(flagos_event_t event) {
  (void)event;
  return no_handle("event_query");
}

static flagos_status_t event_sync(flagos_event_t event) {
  (void)event;
  return no_handle("event_sync");
}

/*===-- The table -----------------------------------------------------------------------------------===*/

/* Entries that are not named here are NULL: "this device cannot". driver.h says what the runtime does then. */
static const flagos_driver_v1_t table = {
    .struct_size = sizeof(flagos_driver_v1_t),
    .abi_version = FLAGOS_DRIVER_ABI_VERSION,
    .platform = "null",
    .implementation = "skeleton without a device",
    .init = init,
    .capabilities = capabilities,
    .device_count = device_count,
    .device_info = device_info,
    .device_sync = device_sync,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .copy = copy,
    .fill = fill,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_query = stream_query,
    .stream_sync = stream_sync,
    .stream_wait = stream_wait,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_sync = event_sync,
    .last_error = last_error,
};

FLAGOS_EXPORT flagos_status_t flagos_driver_entry_v1(uint32_t abi_version, const flagos_driver_v1_t** out_driver);

FLAGOS_EXPORT flagos_status_t flagos_driver_entry_v1(uint32_t abi_version, const flagos_driver_v1_t** out_driver) {
  if (abi_version < FLAGOS_DRIVER_ABI_VERSION) {
    return fail(FLAGOS_UNSUPPORTED, "flagos_driver_entry_v1", -1, "the caller is older than this driver");
  }
  *out_driver = &table;
  return FLAGOS_OK;
}
