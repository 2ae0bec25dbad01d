// SPDX-License-Identifier: Apache-2.0
// The memory functions of runtime.h and allocator.h over one DeviceAllocator a device.
#include <array>
#include <cstdio>
#include <mutex>
#include <string>

#include "runtime/allocator/device_allocator.h"

namespace torch_fl::runtime {

// Zero-initialised and trivially destroyed: usable before main and after exit.
constinit PageMap g_page_map;

namespace {

std::array<std::atomic<DeviceAllocator*>, kMaxDevices> g_allocators;  // leaked: tensors outlive static destructors

DeviceAllocator* Made(int device) noexcept {
  if (device < 0 || device >= kMaxDevices) return nullptr;
  return g_allocators[static_cast<size_t>(device)].load(std::memory_order_acquire);
}

// What new allocators start with. The mutex also orders making them with changing it, so that none misses a change.
struct Settings {
  std::mutex mutex;
  AllocatorConfig config;
  HistorySettings history;
  std::atomic<bool> history_on{false};
};

Settings& TheSettings() {
  static auto* const settings = new Settings;  // leaked
  return *settings;
}

DeviceAllocator& MakeAllocator(int device, const char* call) {
  CheckDevice(device, call);
  Settings& settings = TheSettings();
  const std::lock_guard lock(settings.mutex);
  if (DeviceAllocator* existing = Made(device)) return *existing;
  auto fresh = std::make_unique<DeviceAllocator>(device, settings.config);
  fresh->SetHistory(settings.history);
  g_allocators[static_cast<size_t>(device)].store(fresh.get(), std::memory_order_release);
  return *fresh.release();
}

DeviceAllocator& AllocatorOf(int device, const char* call) {
  if (DeviceAllocator* allocator = Made(device)) [[likely]]
    return *allocator;
  return MakeAllocator(device, call);
}

template <class Visitor>
void ForEachAllocator(const Visitor& visit) {
  for (int device = 0; device < kMaxDevices; ++device) {
    if (DeviceAllocator* allocator = Made(device)) visit(*allocator);
  }
}

void CheckCall(int device, const char* call) {
  CheckNotForked(call);
  CheckDevice(device, call);
}

void CheckConfig(const AllocatorConfig& config) {
  const auto refuse = [](const std::string& what) { throw Error(FLAGOS_INVALID_VALUE, "allocator settings: " + what); };
  if (config.max_split_size <= kOwnSegment * 2) {
    refuse("max_split_size must be larger than 20 MiB, got " + std::to_string(config.max_split_size) + " bytes");
  }
  if (config.large_segment_size < kSegmentStep) {
    refuse("large_segment_size must be 2 MiB at least, got " + std::to_string(config.large_segment_size) + " bytes");
  }
  if (!(config.garbage_collection_threshold >= 0 && config.garbage_collection_threshold < 1)) {
    refuse("garbage_collection_threshold must be in [0, 1), got " +
           std::to_string(config.garbage_collection_threshold));
  }
  for (const size_t divisions : config.roundup_power2_divisions) {
    if ((divisions & (divisions - 1)) != 0) {
      refuse("roundup_power2_divisions must be powers of two or 0, got " + std::to_string(divisions));
    }
  }
}

}  // namespace

void* Allocate(int device, size_t size, const char* op) {
  CheckNotForked("allocate");
  DeviceAllocator& allocator = AllocatorOf(device, "allocate");
  if (size == 0) return nullptr;
  return allocator.Allocate(size, op);
}

void Free(void* pointer) noexcept {
  if (pointer == nullptr || Forked()) return;
  PageMap::Slot* slot = g_page_map.Find(pointer);
  const uint64_t entry = slot != nullptr ? slot->load(std::memory_order_acquire) : 0;
  if (!EntryBeginsAt(entry, pointer)) [[unlikely]] {
    std::fprintf(stderr, "torch_fl: Free(%p): not the address of a live flagos block; ignored\n", pointer);
    return;
  }
  Made(EntryDevice(entry))->Free(pointer, slot);
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
    DeviceAllocator* allocator = Made(device);
    if (allocator != nullptr && allocator->Find(pointer, info, live)) return true;
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

void RecordStream(void* pointer, Stream* stream) {
  CheckNotForked("record_stream");
  if (pointer == nullptr || stream == nullptr) return;
  PageMap::Slot* slot = g_page_map.Find(pointer);
  const uint64_t entry = slot != nullptr ? slot->load(std::memory_order_acquire) : 0;
  if (EntryBeginsAt(entry, pointer)) Made(EntryDevice(entry))->RecordStream(slot, pointer, stream);
}

void EmptyCache() {
  CheckNotForked("empty_cache");
  ForEachAllocator([](DeviceAllocator& allocator) { allocator.EmptyCache(std::nullopt); });
}

void EmptyCache(MemoryPoolId id) {
  CheckNotForked("empty_cache");
  ForEachAllocator([&](DeviceAllocator& allocator) { allocator.EmptyCache(id); });
}

MemoryStats GetMemoryStats(int device) {
  CheckCall(device, "memory_stats");
  if (DeviceAllocator* allocator = Made(device)) return allocator->Stats();
  MemoryStats none;
  none.max_split_size = -1;
  return none;
}

void ResetPeakStats(int device) {
  CheckCall(device, "reset_peak_memory_stats");
  if (DeviceAllocator* allocator = Made(device)) allocator->ResetPeakStats();
}

void ResetAccumulatedStats(int device) {
  CheckCall(device, "reset_accumulated_memory_stats");
  if (DeviceAllocator* allocator = Made(device)) allocator->ResetAccumulatedStats();
}

void SetAllocatorConfig(const AllocatorConfig& config) {
  CheckNotForked("allocator_config");
  CheckConfig(config);
  Settings& settings = TheSettings();
  const std::lock_guard lock(settings.mutex);
  settings.config = config;
  ForEachAllocator([&](DeviceAllocator& allocator) { allocator.Configure(config); });
}

AllocatorConfig GetAllocatorConfig() {
  CheckNotForked("allocator_config");
  Settings& settings = TheSettings();
  const std::lock_guard lock(settings.mutex);
  return settings.config;
}

void SetMemoryFraction(int device, double fraction) {
  CheckCall(device, "set_per_process_memory_fraction");
  if (!(fraction > 0 && fraction <= 1)) {
    throw Error(FLAGOS_INVALID_VALUE,
                "set_per_process_memory_fraction: the fraction must be more than 0 and at most 1, got " +
                    std::to_string(fraction));
  }
  AllocatorOf(device, "set_per_process_memory_fraction").SetFraction(fraction);
}

double GetMemoryFraction(int device) {
  CheckCall(device, "get_per_process_memory_fraction");
  DeviceAllocator* allocator = Made(device);
  return allocator != nullptr ? allocator->Fraction() : 1;
}

void BeginAllocateToPool(int device, MemoryPoolId id, std::function<bool(Stream*)> filter) {
  CheckNotForked("begin_allocate_to_pool");
  AllocatorOf(device, "begin_allocate_to_pool").BeginPool(id, std::move(filter));
}

void EndAllocateToPool(int device, MemoryPoolId id) {
  CheckNotForked("end_allocate_to_pool");
  AllocatorOf(device, "end_allocate_to_pool").EndPool(id);
}

void RetainPool(int device, MemoryPoolId id) {
  CheckNotForked("retain_pool");
  AllocatorOf(device, "retain_pool").RetainPool(id);
}

void ReleasePool(int device, MemoryPoolId id) {
  CheckNotForked("release_pool");
  AllocatorOf(device, "release_pool").ReleasePool(id);
}

int PoolUseCount(int device, MemoryPoolId id) {
  CheckCall(device, "pool_use_count");
  DeviceAllocator* allocator = Made(device);
  return allocator != nullptr ? allocator->PoolUses(id) : 0;
}

void RecordMemoryHistory(size_t max_entries, HistoryContext when, GatherContext gather) {
  CheckNotForked("record_memory_history");
  Settings& settings = TheSettings();
  const std::lock_guard lock(settings.mutex);
  settings.history = {max_entries, when, gather};
  settings.history_on.store(max_entries != 0, std::memory_order_relaxed);
  ForEachAllocator([&](DeviceAllocator& allocator) { allocator.SetHistory(settings.history); });
}

bool MemoryHistoryEnabled() noexcept { return TheSettings().history_on.load(std::memory_order_relaxed); }

MemorySnapshot TakeMemorySnapshot(std::optional<MemoryPoolId> pool) {
  CheckNotForked("memory_snapshot");
  MemorySnapshot out;
  for (int device = 0, count = DeviceCount(); device < count; ++device) {
    if (DeviceAllocator* allocator = Made(device)) {
      allocator->Snapshot(pool, &out);
    } else {
      out.traces.emplace_back();
    }
  }
  return out;
}

}  // namespace torch_fl::runtime
