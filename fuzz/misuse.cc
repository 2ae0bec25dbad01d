// SPDX-License-Identifier: Apache-2.0
// Questions, and calls that must be refused.
#include <algorithm>
#include <limits>

#include "program.h"

namespace torch_fl::fuzz {
namespace {

void DoNothing(void*) {}

}  // namespace

void Program::Ask() {
  const int device = input_.Below(devices_);
  switch (input_.Byte() % 6) {
    case 0: {
      flagos_device_info_t info{};
      info.struct_size = sizeof info;
      CALL(kOk, device_info, device, &info);
      return;
    }
    case 1: {
      uint64_t free = 0;
      uint64_t total = 0;
      if (D().device_memory == nullptr) return;
      CALL(kOk, device_memory, device, &free, &total);
      if (free > total) Die("more memory is free than there is");
      return;
    }
    case 2: {
      int32_t can = 0;
      if (D().peer_can_access == nullptr) return;
      const int peer = input_.Below(devices_);
      CALL(kOk, peer_can_access, device, peer, &can);
      if (can != 0) CALL(kOk | kAlready, peer_enable, device, peer);
      return;
    }
    case 3: {
      void* pointer = this;
      CALL(kOk, memory_alloc, device, 0, &pointer);
      if (pointer != nullptr) Die("0 bytes gave %p", pointer);
      CALL(kOk, memory_free, device, nullptr);
      CALL(kOk, copy, nullptr, device, nullptr, FLAGOS_HOST, 0, nullptr);
      CALL(kOk, fill, nullptr, device, 0, 0, nullptr);
      return;
    }
    case 4: {
      flagos_access_fault_t fault{};
      fault.struct_size = sizeof fault;
      if ((capabilities_ & FLAGOS_CAP_ACCESS_FAULTS) != 0) CALL(kNotReady, access_fault_take, &fault);
      return;
    }
    default: {
      Memory* memory = AnyMemory(false);
      if (memory == nullptr || D().pointer_info == nullptr) return;
      flagos_pointer_info_t info{};
      info.struct_size = sizeof info;
      CALL(kOk, pointer_info, memory->pointer + input_.Word() % memory->bytes.size(), &info);
      const flagos_memory_space_t wanted = memory->OnDevice() ? FLAGOS_SPACE_DEVICE : FLAGOS_SPACE_PINNED;
      if (info.space != wanted || info.device != memory->device) {
        Die("pointer_info says space %d, device %d; it is %d, %d", info.space, info.device, wanted, memory->device);
      }
    }
  }
}

void Program::Misuse() {
  if (!g_options.misuse) return;
  switch (input_.Byte() % 4) {
    case 0:
      return MisuseMemory();
    case 1:
      return MisuseHandle();
    case 2:
      return MisuseDevice();
    default:
      return MisuseAddressSpace();
  }
}

void Program::MisuseMemory() {
  Memory* memory = AnyMemory(true);
  Queue* queue = memory != nullptr ? QueueOf(memory->device) : nullptr;
  const flagos_stream_t stream = queue != nullptr ? queue->handle : nullptr;
  if (queue != nullptr) queue->idle = false;  // a layer may have queued something before the call was refused
  void* pointer = nullptr;
  uint8_t host[64] = {};
  switch (input_.Byte() % 8) {
    case 0:
      CALL(kNoMemory, memory_alloc, input_.Below(devices_), size_t{1} << (48 + input_.Byte() % 15), &pointer);
      return;
    case 1:
      CALL(kBadValue, memory_free, input_.Below(devices_), host);
      return;
    case 2:
      if (memory == nullptr || memory->bytes.size() < 2) return;
      CALL(kBadValue, memory_free, memory->device, memory->pointer + 1 + input_.Word() % (memory->bytes.size() - 1));
      return;
    case 3:
      if (memory == nullptr || memory->kind != Kind::kBlock) return;
      CALL(kBadValue, fill, memory->pointer, memory->device, 1, memory->bytes.size() + 1 + input_.Word(), stream);
      return;
    case 4:
      if (memory == nullptr || memory->kind != Kind::kBlock) return;
      CALL(kBadValue, copy, memory->pointer + memory->bytes.size() - 1, memory->device, host, FLAGOS_HOST, 2, stream);
      return;
    case 5:
      CALL(kBadValue, copy, host, FLAGOS_HOST, host + 32, FLAGOS_HOST, 16, stream);
      CALL(kBadValue, copy, host, 0, host + 32, FLAGOS_HOST, 16, nullptr);
      return;
    case 6:
      if (memory == nullptr || memory->bytes.size() < 3) return;
      CALL(kBadValue, copy, memory->pointer, memory->device, memory->pointer + 1, memory->device,
           memory->bytes.size() - 1, stream);
      return;
    default:
      if (D().host_alloc != nullptr) CALL(kBadValue, host_free, host);
      if (D().host_register != nullptr) CALL(kBadValue, host_unregister, host);
  }
}

void Program::MisuseHandle() {
  alignas(64) static uint8_t foreign[4096];  // readable, and nobody's handle
  auto stream = reinterpret_cast<flagos_stream_t>(foreign);
  auto event = reinterpret_cast<flagos_event_t>(foreign);
  const int kind = input_.Byte() % 4;
  if (kind == 0) {
    stream = nullptr;
    event = nullptr;
  } else if (kind < 3) {
    // A driver may use the number of a dead object again.
    const auto live_stream = [&](flagos_stream_t handle) {
      return std::any_of(queues_.begin(), queues_.end(), [&](const auto& queue) { return queue->handle == handle; });
    };
    const auto live_event = [&](flagos_event_t handle) {
      return std::any_of(events_.begin(), events_.end(), [&](const auto& e) { return e->handle == handle; });
    };
    if (dead_streams_.empty() || dead_events_.empty()) return;
    stream = dead_streams_[input_.Below(dead_streams_.size())];
    event = dead_events_[input_.Below(dead_events_.size())];
    if (live_stream(stream) || live_event(event)) return;
  }
  Queue* queue = AnyQueue();
  const EventState* good = AnyEvent();
  if (queue != nullptr) queue->idle = false;
  float ms = 0;
  switch (input_.Byte() % 10) {
    case 0:
      CALL(kBadHandle, stream_destroy, stream);
      return;
    case 1:
      CALL(kBadHandle, stream_query, stream);
      return;
    case 2:
      CALL(kBadHandle, stream_sync, stream);
      return;
    case 3:
      if (good != nullptr) CALL(kBadHandle, stream_wait, stream, good->handle);
      if (queue != nullptr) CALL(kBadHandle, stream_wait, queue->handle, event);
      return;
    case 4:
      if (D().stream_host_func != nullptr) CALL(kBadHandle, stream_host_func, stream, DoNothing, nullptr);
      if (D().stream_host_func != nullptr && queue != nullptr) {
        CALL(kBadValue, stream_host_func, queue->handle, nullptr, nullptr);
      }
      return;
    case 5:
      CALL(kBadHandle, event_destroy, event);
      return;
    case 6:
      CALL(kBadHandle, event_query, event);
      CALL(kBadHandle, event_sync, event);
      return;
    case 7:
      if (queue != nullptr) CALL(kBadHandle, event_record, event, queue->handle);
      if (good != nullptr && stream != nullptr) CALL(kBadHandle, event_record, good->handle, stream);
      return;
    case 8:
      if (good != nullptr && D().event_elapsed != nullptr) CALL(kBadHandle, event_elapsed, good->handle, event, &ms);
      return;
    default: {
      Memory* memory = AnyMemory(true);
      uint8_t host[8] = {};
      if (memory == nullptr || stream == nullptr) return;
      CALL(kBadHandle, copy, memory->pointer, memory->device, host, FLAGOS_HOST, 1, stream);
      CALL(kBadHandle, fill, memory->pointer, memory->device, 0, 1, stream);
    }
  }
}

void Program::MisuseDevice() {
  static constexpr int32_t kBad[] = {-2, -1, 1000, std::numeric_limits<int32_t>::min(),
                                     std::numeric_limits<int32_t>::max()};
  const int32_t bad = input_.Chance(100) ? devices_ : kBad[input_.Byte() % std::size(kBad)];
  void* pointer = nullptr;
  uint8_t host[16] = {};
  flagos_stream_t stream = nullptr;
  flagos_event_t event = nullptr;
  flagos_device_info_t info{};
  info.struct_size = sizeof info;
  switch (input_.Byte() % 7) {
    case 0:
      CALL(kBadDevice, device_sync, bad);
      return;
    case 1:
      CALL(kBadDevice, memory_alloc, bad, 64, &pointer);
      return;
    case 2:
      CALL(kBadDevice, memory_free, bad, host);
      return;
    case 3:
      CALL(kBadDevice, stream_create, bad, FLAGOS_STREAM_DEFAULT, 0, &stream);
      return;
    case 4:
      CALL(kBadDevice, event_create, bad, FLAGOS_EVENT_DEFAULT, &event);
      return;
    case 5:
      CALL(kBadDevice, device_info, bad, &info);
      return;
    default: {
      // A stream of a device that takes no part.
      Memory* memory = AnyMemory(true);
      Queue* queue = AnyQueue();
      if (memory == nullptr || queue == nullptr || queue->device == memory->device) return;
      queue->idle = false;
      CALL(kBadValue | kBadHandle, fill, memory->pointer, memory->device, 0, 1, queue->handle);
      const EventState* good = AnyEvent();
      if (good == nullptr || good->device == queue->device) return;
      CALL(kBadValue | kBadHandle, event_record, good->handle, queue->handle);
    }
  }
}

void Program::MisuseAddressSpace() {
  if (D().memory_reserve == nullptr) return;
  const int device = input_.Below(devices_);
  size_t granule = 0;
  void* pointer = nullptr;
  CALL(kOk, memory_granularity, device, &granule);
  if (input_.Chance(64)) {
    CALL(kBadValue, memory_reserve, device, granule + 1, &pointer);
    CALL(kBadValue, memory_map, device, nullptr, granule);
    return;
  }
  if (CALL(kOk | kNoMemory, memory_reserve, device, 2 * granule, &pointer) != FLAGOS_OK) return;
  auto* const base = static_cast<uint8_t*>(pointer);
  CALL(kBadValue, fill, base, device, 0, 1, nullptr);
  CALL(kBadValue, memory_unmap, device, base, granule);
  CALL(kBadValue, memory_map, device, base + granule, 2 * granule);
  if (CALL(kOk | kNoMemory, memory_map, device, base, granule) == FLAGOS_OK) {
    CALL(kBadValue | kAlready, memory_map, device, base, granule);
    CALL(kBadValue, memory_release, device, base, 2 * granule);
    CALL(kBadValue, fill, base + granule - 1, device, 0, 2, nullptr);
    CALL(kOk, memory_unmap, device, base, granule);
  }
  CALL(kOk, memory_release, device, base, 2 * granule);
}

}  // namespace torch_fl::fuzz
