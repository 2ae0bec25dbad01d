// SPDX-License-Identifier: Apache-2.0
// What the files of the runtime share. Not for other layers.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/runtime.h"

namespace torch_fl::runtime {

// Bounds the per-device tables, which are plain arrays so that the hot path indexes them without a lock.
inline constexpr int kMaxDevices = 64;

// ---- Loader
struct DriverOption {
  std::string variable;  // FLAGOS_HOST_DEVICES
  std::string key;       // devices
  std::string value;
};
// The options the active driver was initialised with.
const std::vector<DriverOption>& DriverOptions();

// Throws the driver's last error: `entry` on `device` with the vendor's words.
[[noreturn]] void ThrowDriverError(const flagos_driver_v1_t& driver, flagos_status_t status, const char* entry,
                                   int device);
inline void CheckStatus(flagos_status_t status, const char* entry, int device) {
  if (status != FLAGOS_OK) [[unlikely]]
    ThrowDriverError(Driver(), status, entry, device);
}

// ---- Fork
[[noreturn]] void ThrowForked(const char* call);
inline bool Forked() noexcept { return (g_attention.load(std::memory_order_relaxed) & kAttentionForked) != 0; }
inline void CheckNotForked(const char* call) {
  if (Forked()) [[unlikely]]
    ThrowForked(call);
}
// Called before the first memory or stream of a device is made: from then on a fork disables the child.
void MarkContext(int device);
// True once the process began to exit: the driver may be gone, only lists may be touched.
bool Exiting() noexcept;
void RegisterExit();

// ---- Pool
// Like FindAllocation, but also finds what a cached block last was; *live tells which.
bool FindLastAllocation(const void* pointer, AllocationInfo* info, bool* live) noexcept;

// ---- Counters
struct AtomicCounters {
  std::atomic<uint64_t> copies_h2d{0}, copies_d2h{0}, copies_d2d{0};
  std::atomic<uint64_t> bytes_h2d{0}, bytes_d2h{0}, bytes_d2d{0};
  std::atomic<uint64_t> fills{0};
  std::atomic<uint64_t> device_syncs{0}, stream_syncs{0}, event_syncs{0};
};
extern AtomicCounters g_counters;
inline void Count(std::atomic<uint64_t>& counter, uint64_t amount = 1) noexcept {
  counter.fetch_add(amount, std::memory_order_relaxed);
}

}  // namespace torch_fl::runtime
