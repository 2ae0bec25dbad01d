// SPDX-License-Identifier: Apache-2.0
// The one list of the driver table's functions, and templates that put a layer round each without a line per function.
#pragma once

#include <array>
#include <cstddef>
#include <exception>

#include "runtime/layers/refuse.h"
#include "torch_fl/driver.h"

namespace torch_fl::runtime::layers {

// clang-format off
#define TORCH_FL_STATUS_ENTRIES(X)                                                                                     \
  X(init) X(versions) X(device_count) X(device_info) X(device_memory) X(device_sync)                                   \
  X(memory_alloc) X(memory_free) X(host_view_offset) X(host_alloc) X(host_free) X(host_register) X(host_unregister)    \
  X(pointer_info) X(access_fault_take) X(copy) X(fill)                                                                 \
  X(stream_priority_range) X(stream_create) X(stream_destroy) X(stream_query) X(stream_sync) X(stream_wait)            \
  X(stream_wrap) X(stream_host_func)                                                                                   \
  X(event_create) X(event_destroy) X(event_record) X(event_query) X(event_sync) X(event_elapsed)                       \
  X(peer_can_access) X(peer_enable) X(kernel_begin) X(kernel_end)                                                      \
  X(memory_granularity) X(memory_reserve) X(memory_release) X(memory_map) X(memory_unmap)
#define TORCH_FL_OTHER_ENTRIES(X) X(at_exit) X(capabilities) X(memory_alignment) X(stream_native) X(last_error)
// clang-format on

#define TORCH_FL_NAME(entry) #entry,
inline constexpr std::array kStatusEntries{TORCH_FL_STATUS_ENTRIES(TORCH_FL_NAME)};
inline constexpr std::array kOtherEntries{TORCH_FL_OTHER_ENTRIES(TORCH_FL_NAME)};
#undef TORCH_FL_NAME
static_assert(offsetof(flagos_driver_v1_t, init) + (kStatusEntries.size() + kOtherEntries.size()) * sizeof(void*) ==
                  sizeof(flagos_driver_v1_t),
              "driver.h has an entry that the lists above lack");

enum class EntryId : size_t {
#define TORCH_FL_ID(entry) entry,
  TORCH_FL_STATUS_ENTRIES(TORCH_FL_ID)
#undef TORCH_FL_ID
};

// Place of a member of the table in kStatusEntries.
template <auto Entry>
inline constexpr size_t kEntryIndex = kStatusEntries.size();
#define TORCH_FL_INDEX(entry) \
  template <>                 \
  inline constexpr size_t kEntryIndex<&flagos_driver_v1_t::entry> = static_cast<size_t>(EntryId::entry);
TORCH_FL_STATUS_ENTRIES(TORCH_FL_INDEX)
#undef TORCH_FL_INDEX

template <auto Entry>
inline constexpr const char* kEntryName = kStatusEntries[kEntryIndex<Entry>];

// No exception may leave a table.
template <class Body>
flagos_status_t NoThrow(const char* entry, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    return Refuse(FLAGOS_OUT_OF_MEMORY, entry, -1, "a driver layer ran out of host memory: %s", error.what());
  }
}

// The C function that stands in a table for `Entry`: Layer::Call<Entry>(arguments...).
template <class Layer, auto Entry>
struct Around;
template <class Layer, class... Arguments, flagos_status_t (*flagos_driver_v1_t::*Entry)(Arguments...)>
struct Around<Layer, Entry> {
  static flagos_status_t Function(Arguments... arguments) {
    return NoThrow(kEntryName<Entry>, [&] { return Layer::template Call<Entry>(arguments...); });
  }
};

// Puts Layer round every function that returns a status; one that the inner table lacks stays NULL.
template <class Layer>
void WrapAll(const flagos_driver_v1_t& inner, flagos_driver_v1_t* table) {
#define TORCH_FL_WRAP(entry) \
  if (inner.entry != nullptr) table->entry = &Around<Layer, &flagos_driver_v1_t::entry>::Function;
  TORCH_FL_STATUS_ENTRIES(TORCH_FL_WRAP)
#undef TORCH_FL_WRAP
}

}  // namespace torch_fl::runtime::layers
