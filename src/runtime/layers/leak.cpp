// SPDX-License-Identifier: Apache-2.0
// leak: what was made and not given back.
#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "base/options.h"
#include "runtime/internal.h"
#include "runtime/layers/entries.h"
#include "runtime/layers/exit.h"
#include "runtime/layers/layer.h"

namespace torch_fl::runtime {
namespace layers {
namespace {

enum class Kind { kMemory, kHostMemory, kHostRegistration, kStream, kEvent, kReservation, kMapping };
constexpr std::array kKindNames{"memory",      "host_memory", "host_registration", "stream", "event",
                                "reservation", "mapping"};

// Addresses of different devices may be equal.
struct Key {
  Kind kind;
  int device;
  uintptr_t handle;
  auto operator<=>(const Key&) const = default;
};
struct Object {
  size_t size;
  int device;
  uint64_t number;
};

// Leaked: late calls and the exit handler use it.
struct Leak {
  std::mutex mutex;  // never held while the driver is called
  std::map<Key, Object> objects;
  uint64_t made = 0;
};

const flagos_driver_v1_t* g_inner = nullptr;
flagos_driver_v1_t g_table;
std::atomic<Leak*> g_leak{nullptr};

Key KeyOf(Kind kind, int device, const void* handle) { return {kind, device, reinterpret_cast<uintptr_t>(handle)}; }

void Add(const Key& key, size_t size, int device) {
  if (key.handle == 0) return;
  Leak& leak = *g_leak.load();
  const std::lock_guard lock(leak.mutex);
  leak.objects.insert_or_assign(key, Object{size, device, ++leak.made});
}

// Makes an object by `make`, which fills *out.
template <class Handle, class Make>
flagos_status_t Made(const char* entry, Kind kind, int key_device, int device, size_t size, Handle* out, Make&& make) {
  if (InForkedChild()) return make();
  return NoThrow(entry, [&] {
    const flagos_status_t status = make();
    if (status == FLAGOS_OK) Add(KeyOf(kind, key_device, *out), size, device);
    return status;
  });
}

// Gives objects back by `give`. They leave the list before: the driver may hand the same handle to another thread
// at once. They return to it when the driver refuses.
template <class Give>
flagos_status_t Given(const char* entry, const Key& key, size_t size, Give&& give) {
  if (InForkedChild()) return give();
  return NoThrow(entry, [&] {
    Leak& leak = *g_leak.load();
    std::vector<std::map<Key, Object>::node_type> taken;
    {
      const std::lock_guard lock(leak.mutex);
      auto object = leak.objects.lower_bound(key);
      while (object != leak.objects.end() && object->first.kind == key.kind && object->first.device == key.device &&
             object->first.handle - key.handle < size) {
        auto next = std::next(object);
        taken.push_back(leak.objects.extract(object));
        object = next;
      }
    }
    const flagos_status_t status = give();
    if (status != FLAGOS_OK) {
      const std::lock_guard lock(leak.mutex);
      for (auto& node : taken) leak.objects.insert(std::move(node));
    }
    return status;
  });
}

flagos_status_t MemoryAlloc(int32_t device, size_t size, void** out) {
  return Made("memory_alloc", Kind::kMemory, device, device, size, out,
              [&] { return g_inner->memory_alloc(device, size, out); });
}
flagos_status_t MemoryFree(int32_t device, void* pointer) {
  return Given("memory_free", KeyOf(Kind::kMemory, device, pointer), 1,
               [&] { return g_inner->memory_free(device, pointer); });
}
flagos_status_t HostAlloc(size_t size, void** out) {
  return Made("host_alloc", Kind::kHostMemory, -1, -1, size, out, [&] { return g_inner->host_alloc(size, out); });
}
flagos_status_t HostFree(void* pointer) {
  return Given("host_free", KeyOf(Kind::kHostMemory, -1, pointer), 1, [&] { return g_inner->host_free(pointer); });
}
flagos_status_t HostRegister(void* pointer, size_t size) {
  // 0 bytes register nothing.
  void* handle = size == 0 ? nullptr : pointer;
  return Made("host_register", Kind::kHostRegistration, -1, -1, size, &handle,
              [&] { return g_inner->host_register(pointer, size); });
}
flagos_status_t HostUnregister(void* pointer) {
  return Given("host_unregister", KeyOf(Kind::kHostRegistration, -1, pointer), 1,
               [&] { return g_inner->host_unregister(pointer); });
}
flagos_status_t StreamCreate(int32_t device, uint32_t flags, int32_t priority, flagos_stream_t* out) {
  return Made("stream_create", Kind::kStream, -1, device, 0, out,
              [&] { return g_inner->stream_create(device, flags, priority, out); });
}
flagos_status_t StreamWrap(int32_t device, void* native, flagos_stream_t* out) {
  return Made("stream_wrap", Kind::kStream, -1, device, 0, out,
              [&] { return g_inner->stream_wrap(device, native, out); });
}
flagos_status_t StreamDestroy(flagos_stream_t stream) {
  return Given("stream_destroy", KeyOf(Kind::kStream, -1, stream), 1, [&] { return g_inner->stream_destroy(stream); });
}
flagos_status_t EventCreate(int32_t device, uint32_t flags, flagos_event_t* out) {
  return Made("event_create", Kind::kEvent, -1, device, 0, out,
              [&] { return g_inner->event_create(device, flags, out); });
}
flagos_status_t EventDestroy(flagos_event_t event) {
  return Given("event_destroy", KeyOf(Kind::kEvent, -1, event), 1, [&] { return g_inner->event_destroy(event); });
}
flagos_status_t MemoryReserve(int32_t device, size_t size, void** out) {
  return Made("memory_reserve", Kind::kReservation, device, device, size, out,
              [&] { return g_inner->memory_reserve(device, size, out); });
}
flagos_status_t MemoryRelease(int32_t device, void* pointer, size_t size) {
  return Given("memory_release", KeyOf(Kind::kReservation, device, pointer), 1,
               [&] { return g_inner->memory_release(device, pointer, size); });
}
flagos_status_t MemoryMap(int32_t device, void* pointer, size_t size) {
  void* handle = size == 0 ? nullptr : pointer;
  return Made("memory_map", Kind::kMapping, device, device, size, &handle,
              [&] { return g_inner->memory_map(device, pointer, size); });
}
flagos_status_t MemoryUnmap(int32_t device, void* pointer, size_t size) {
  return Given("memory_unmap", KeyOf(Kind::kMapping, device, pointer), size,
               [&] { return g_inner->memory_unmap(device, pointer, size); });
}

void Report() {
  constexpr size_t kShown = 50;
  const std::vector<LiveObject> objects = LiveObjects();
  if (objects.empty()) return;
  uint64_t bytes = 0;
  for (const LiveObject& object : objects) bytes += object.size;
  std::fprintf(stderr, "torch_fl: layer leak: %zu objects of %s were not given back to the driver\n", objects.size(),
               FormatBytes(bytes).c_str());
  for (size_t i = 0; i < std::min(objects.size(), kShown); ++i) {
    const LiveObject& object = objects[i];
    std::fprintf(stderr, "  %s #%llu at %#llx", object.kind.c_str(), static_cast<unsigned long long>(object.number),
                 static_cast<unsigned long long>(object.handle));
    if (object.size != 0) std::fprintf(stderr, ", %zu bytes", object.size);
    if (object.device >= 0) std::fprintf(stderr, ", flagos:%d", object.device);
    std::fputc('\n', stderr);
  }
  if (objects.size() > kShown) std::fprintf(stderr, "  and %zu more\n", objects.size() - kShown);
}

// The table has at_exit even where the driver has none.
void AtExit() {
  if (InForkedChild()) return;
  try {
    Report();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torch_fl: layer leak: no report: %s\n", error.what());
  }
  if (g_inner->at_exit != nullptr) g_inner->at_exit();
}

const flagos_driver_v1_t& Wrap(const flagos_driver_v1_t& inner, const LayerSpec&) {
  g_inner = &inner;
  g_table = inner;
  const auto put = [](auto& entry, auto* function) {
    if (entry != nullptr) entry = function;
  };
  put(g_table.memory_alloc, &MemoryAlloc);
  put(g_table.memory_free, &MemoryFree);
  put(g_table.host_alloc, &HostAlloc);
  put(g_table.host_free, &HostFree);
  put(g_table.host_register, &HostRegister);
  put(g_table.host_unregister, &HostUnregister);
  put(g_table.stream_create, &StreamCreate);
  put(g_table.stream_wrap, &StreamWrap);
  put(g_table.stream_destroy, &StreamDestroy);
  put(g_table.event_create, &EventCreate);
  put(g_table.event_destroy, &EventDestroy);
  put(g_table.memory_reserve, &MemoryReserve);
  put(g_table.memory_release, &MemoryRelease);
  put(g_table.memory_map, &MemoryMap);
  put(g_table.memory_unmap, &MemoryUnmap);
  g_table.at_exit = &AtExit;
  g_leak.store(new Leak);
  return g_table;
}

std::array<std::atomic<void (*)()>, 8> g_before_exit;

}  // namespace

const Layer kLeak{"leak", &NoArguments, &Wrap};

}  // namespace layers

std::vector<LiveObject> LiveObjects() {
  layers::Leak* leak = layers::g_leak.load();
  if (leak == nullptr) layers::RaiseLayerOff("LiveObjects", "leak");
  std::vector<LiveObject> objects;
  {
    const std::lock_guard lock(leak->mutex);
    for (const auto& [key, object] : leak->objects) {
      objects.push_back(
          {layers::kKindNames[static_cast<size_t>(key.kind)], key.handle, object.size, object.device, object.number});
    }
  }
  std::sort(objects.begin(), objects.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  return objects;
}

void AddBeforeExit(void (*give_back)()) {
  for (auto& slot : layers::g_before_exit) {
    void (*expected)() = nullptr;
    if (slot.compare_exchange_strong(expected, give_back)) return;
  }
  throw Error(FLAGOS_UNSUPPORTED, "AddBeforeExit: more than 8 functions; raise the bound in layers/leak.cpp");
}

void RunBeforeExit() noexcept {
  if (layers::g_leak.load() == nullptr) return;
  for (auto slot = layers::g_before_exit.rbegin(); slot != layers::g_before_exit.rend(); ++slot) {
    if (void (*give_back)() = slot->load()) give_back();
  }
}

}  // namespace torch_fl::runtime
