// SPDX-License-Identifier: Apache-2.0
// What distinguishes one member of the family: data, and two optional hooks. A member is one file that defines kVendor.
#pragma once

#include <span>

#include "cuda_shaped/functions.h"
#include "torch_fl/driver.h"

namespace flagos_cuda_shaped {

// A vendor's names for a logical function, in the order they are tried. In the runtime library a row is needed only where
// the name is not prefix + logical name; NULL says that the vendor has no such function.
struct NameRow {
  const char* logical;
  const char* first;
  const char* second = nullptr;
};

// An error number and what it means. When the library can name its errors, the row holds for the candidate that carries
// `name`, whatever its number; otherwise for the first candidate.
struct ErrorRow {
  flagos_status_t status;
  const char* name;
  int first;
  int second = -1;
};

// Numbers of DeviceGetAttribute; negative: unknown, then the field of the device's description stays invalid.
struct AttributeNumbers {
  int compute_units = -1;
  int warp_size = -1;
  int capability_major = -1;
  int capability_minor = -1;
};

// The `type` field of PointerGetAttributes.
struct PointerTypes {
  int unregistered = 0;
  int host = 1;
  int device = 2;
  int managed = 3;
};

// Numbers of the driver library's pointer attributes; negative: unknown.
struct RangeAttributes {
  int start = -1;
  int size = -1;
};

enum Quirk : uint32_t {
  kCurrentDeviceOnly = 1u << 0,  // a pointer resolves only while its own device is current: no unified addressing
};

struct Vendor {
  const char* platform;
  const char* implementation;
  const char* prefix;  // of the runtime library's names
  std::span<const char* const> runtime_libraries;
  std::span<const char* const> driver_libraries;  // empty: the vendor has none, or nobody needs it
  std::span<const char* const> device_nodes;  // one must exist, or the machine has no device; empty: always look
  std::span<const NameRow> runtime_names;
  std::span<const NameRow> driver_names;  // every function of the driver library that the vendor has
  std::span<const ErrorRow> errors;
  AttributeNumbers attributes;
  PointerTypes pointer_types;
  RangeAttributes range_attributes;
  const char* arch_format;  // printf format of capability major and minor, or NULL
  uint32_t quirks = 0;

  // Devices that the process will see, without initialising the vendor's libraries; -1: unknown. NULL: always unknown.
  int (*count_quietly)() = nullptr;
  // Free and total bytes of a device by PCI address, without a context. NULL or false: unknown.
  bool (*memory_quietly)(const char* pci, uint64_t* free_bytes, uint64_t* total_bytes) = nullptr;
};

extern const Vendor kVendor;

}  // namespace flagos_cuda_shaped
