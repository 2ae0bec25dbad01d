// SPDX-License-Identifier: Apache-2.0
// Each call of a program: noted before it runs, its status checked after.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "runtime/runtime.h"
#include "torch_fl/driver.h"

namespace torch_fl::fuzz {

// Sets of statuses.
constexpr uint32_t In(flagos_status_t status) { return 1u << status; }
inline constexpr uint32_t kOk = In(FLAGOS_OK);
inline constexpr uint32_t kNotReady = In(FLAGOS_NOT_READY);
inline constexpr uint32_t kBadValue = In(FLAGOS_INVALID_VALUE);
inline constexpr uint32_t kBadDevice = In(FLAGOS_INVALID_DEVICE);
inline constexpr uint32_t kBadHandle = In(FLAGOS_INVALID_HANDLE);
inline constexpr uint32_t kNoMemory = In(FLAGOS_OUT_OF_MEMORY);
inline constexpr uint32_t kAlready = In(FLAGOS_ALREADY);
inline constexpr uint32_t kUnordered = In(FLAGOS_UNORDERED);

inline const flagos_driver_v1_t& D() { return runtime::Driver(); }

// Prints the label, the last calls of this thread and the reason, then aborts.
[[noreturn, gnu::format(printf, 1, 2)]] void Die(const char* format, ...);

void NoteCall(const char* entry, const std::array<uint64_t, 6>& arguments, size_t count);
// Dies when `status` is not in `allowed`, or when a failure is not what last_error says.
flagos_status_t CheckCall(const char* entry, flagos_status_t status, uint32_t allowed);

template <class T>
uint64_t AsNumber(T value) {
  if constexpr (std::is_same_v<T, std::nullptr_t>) {
    return 0;
  } else if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<uintptr_t>(value);
  } else {
    return static_cast<uint64_t>(value);
  }
}

template <class... Arguments>
void Note(const char* entry, Arguments... arguments) {
  static_assert(sizeof...(arguments) <= 6);
  NoteCall(entry, std::array<uint64_t, 6>{AsNumber(arguments)...}, sizeof...(arguments));
}

template <class Entry, class... Arguments>
flagos_status_t Call(const char* name, Entry entry, uint32_t allowed, Arguments... arguments) {
  Note(name, arguments...);
  return CheckCall(name, entry(arguments...), allowed);
}

#define CALL(allowed, entry, ...) ::torch_fl::fuzz::Call(#entry, ::torch_fl::fuzz::D().entry, allowed, __VA_ARGS__)

}  // namespace torch_fl::fuzz
