// SPDX-License-Identifier: Apache-2.0
// The memory functions of runtime.h over one Pool a device.
#include <array>
#include <cstdio>

#include "runtime/pool_map.h"

namespace torch_fl::runtime {

// Zero-initialised and trivially destroyed: usable before main and after exit.
constinit PageMap g_page_map;

namespace {

std::array<std::atomic<Pool*>, kMaxDevices> g_pools;  // leaked: tensors may outlive static destructors

Pool* PoolIfMade(int device) noexcept {
  if (device < 0 || device >= kMaxDevices) return nullptr;
  return g_pools[static_cast<size_t>(device)].load(std::memory_order_acquire);
}

Pool& PoolOf(int device, const char* call) {
  if (Pool* pool = PoolIfMade(device)) [[likely]]
    return *pool;
  CheckDevice(device, call);
  auto fresh = std::make_unique<Pool>(device);
  Pool* expected = nullptr;
  if (g_pools[static_cast<size_t>(device)].compare_exchange_strong(expected, fresh.get())) return *fresh.release();
  return *expected;
}

}  // namespace

void* Allocate(int device, size_t size, const char* op) {
  CheckNotForked("allocate");
  Pool& pool = PoolOf(device, "allocate");
  if (size == 0) return nullptr;
  return pool.Allocate(size, op);
}

void Free(void* pointer) noexcept {
  if (pointer == nullptr || Forked()) return;
  PageMap::Slot* slot = g_page_map.Find(pointer);
  const uint64_t entry = slot != nullptr ? slot->load(std::memory_order_acquire) : 0;
  if (!EntryBeginsAt(entry, pointer)) [[unlikely]] {
    // Nothing can be thrown here and the caller's mistake must not become a corrupted list.
    std::fprintf(stderr, "torch_fl: Free(%p): not the address of a live flagos block; ignored\n", pointer);
    return;
  }
  PoolIfMade(EntryDevice(entry))->Free(EntryBlock(entry), slot);
}

bool Owns(const void* pointer, int* device) noexcept {
  PageMap::Slot* slot = g_page_map.Find(pointer);
  if (slot == nullptr) return false;
  const uint64_t entry = slot->load(std::memory_order_acquire);
  if (!EntryBeginsAt(entry, pointer)) return false;
  if (device != nullptr) *device = EntryDevice(entry);
  return true;
}

bool FindLastAllocation(const void* pointer, AllocationInfo* info, bool* live) noexcept {
  if (pointer == nullptr || Forked()) return false;  // a lock may be held for ever in a child
  for (int device = 0; device < kMaxDevices; ++device) {
    Pool* pool = PoolIfMade(device);
    if (pool != nullptr && pool->Find(pointer, info, live)) return true;
  }
  return false;
}

bool FindAllocation(const void* pointer, AllocationInfo* info) noexcept {
  AllocationInfo found;
  bool live = false;
  if (!FindLastAllocation(pointer, &found, &live) || !live) return false;
  if (info != nullptr) *info = found;
  return true;
}

MemoryStats GetMemoryStats(int device) {
  CheckNotForked("memory_stats");
  CheckDevice(device, "memory_stats");
  Pool* pool = PoolIfMade(device);
  return pool != nullptr ? pool->Stats() : MemoryStats{};
}

void ResetPeakStats(int device) {
  CheckNotForked("reset_peak_memory_stats");
  CheckDevice(device, "reset_peak_memory_stats");
  if (Pool* pool = PoolIfMade(device)) pool->ResetPeaks();
}

void ResetAccumulatedStats(int device) {
  CheckNotForked("reset_accumulated_memory_stats");
  CheckDevice(device, "reset_accumulated_memory_stats");
  if (Pool* pool = PoolIfMade(device)) pool->ResetAccumulated();
}

void EmptyCache() {
  CheckNotForked("empty_cache");
  for (int device = 0; device < kMaxDevices; ++device) {
    if (Pool* pool = PoolIfMade(device)) pool->ReleaseCached();
  }
}

}  // namespace torch_fl::runtime
