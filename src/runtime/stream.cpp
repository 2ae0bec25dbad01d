// SPDX-License-Identifier: Apache-2.0
#include "runtime/stream.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>

namespace torch_fl::runtime {
namespace {

constexpr int kStreamsPerPriority = 32;
constexpr int kMaxPriorities = 8;
constexpr int64_t kFirstExternalId = 1 + kStreamsPerPriority * kMaxPriorities;

// Ids: 0 the default stream, then 32 for each priority, then external ones in the order they were wrapped.
struct DeviceStreams {
  std::array<std::atomic<Stream*>, kFirstExternalId> known{};
  std::array<std::atomic<uint32_t>, kMaxPriorities> next{};
  std::mutex mutex;  // making streams, external ones
  std::vector<Stream*> external;
  int least = 0, greatest = 0;  // priority range, guarded by the mutex until range_known
  std::atomic<bool> range_known{false};
};

std::array<std::atomic<DeviceStreams*>, kMaxDevices> g_streams;  // leaked: a Stream* never dangles
constinit thread_local Stream* t_current[kMaxDevices] = {};      // NULL: the default stream
// False while every thread is on its default streams: most programs, and then nobody pays for the thread-local look-up.
std::atomic<bool> g_any_current{false};

Stream* ThreadStream(int device) noexcept {
  if (!g_any_current.load(std::memory_order_acquire)) [[likely]]
    return nullptr;
  return t_current[device];
}

DeviceStreams& StreamsOf(int device, const char* call) {
  CheckNotForked(call);
  if (device >= 0 && device < kMaxDevices) [[likely]] {
    if (DeviceStreams* streams = g_streams[static_cast<size_t>(device)].load(std::memory_order_acquire))
      return *streams;
  }
  CheckDevice(device, call);
  auto fresh = std::make_unique<DeviceStreams>();
  DeviceStreams* expected = nullptr;
  if (g_streams[static_cast<size_t>(device)].compare_exchange_strong(expected, fresh.get())) return *fresh.release();
  return *expected;
}

Stream* Known(DeviceStreams& streams, int device, int64_t id, int priority) {
  std::atomic<Stream*>& slot = streams.known[static_cast<size_t>(id)];
  if (Stream* stream = slot.load(std::memory_order_acquire)) [[likely]]
    return stream;
  const std::lock_guard lock(streams.mutex);
  if (Stream* stream = slot.load(std::memory_order_relaxed)) return stream;
  auto* stream = new Stream(device, id, priority);
  slot.store(stream, std::memory_order_release);
  return stream;
}

void LearnPriorities(DeviceStreams& streams, int device) {
  if (streams.range_known.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(streams.mutex);
  if (Driver().stream_priority_range != nullptr) {
    int32_t least = 0;
    int32_t greatest = 0;
    CheckStatus(Driver().stream_priority_range(device, &least, &greatest), "stream_priority_range", device);
    streams.greatest = greatest;
    streams.least = std::clamp<int>(least, greatest, greatest + kMaxPriorities - 1);
  }
  streams.range_known.store(true, std::memory_order_release);
}

}  // namespace

void Stream::MarkDrained(uint64_t mark) noexcept {
  // A shared stream stays dirty: work that the runtime cannot count may be on it.
  if (shared_.load(std::memory_order_acquire)) return;
  uint64_t drained = drained_.load(std::memory_order_relaxed);
  while (drained < mark && !drained_.compare_exchange_weak(drained, mark, std::memory_order_acq_rel)) {
  }
}

void Stream::Synchronize() {
  if (!has_handle()) return;
  const uint64_t mark = Mark();
  Count(g_counters.stream_syncs);
  CheckStatus(Driver().stream_sync(Handle()), "stream_sync", device_);
  MarkDrained(mark);
}

bool Stream::Query() {
  if (!Dirty()) return true;
  const uint64_t mark = Mark();
  const flagos_status_t status = Driver().stream_query(Handle());
  if (status == FLAGOS_NOT_READY) return false;
  CheckStatus(status, "stream_query", device_);
  MarkDrained(mark);
  return true;
}

flagos_stream_t Stream::Handle() {
  if (flagos_stream_t handle = handle_.load(std::memory_order_acquire)) [[likely]]
    return handle;
  const std::lock_guard lock(mutex_);
  if (flagos_stream_t handle = handle_.load(std::memory_order_relaxed)) return handle;
  MarkContext(device_);
  flagos_stream_t handle = nullptr;
  CheckStatus(Driver().stream_create(device_, FLAGOS_STREAM_DEFAULT, priority_, &handle), "stream_create", device_);
  handle_.store(handle, std::memory_order_release);
  return handle;
}

void* Stream::Native() {
  flagos_stream_t handle = Handle();
  // Order matters: whoever sees the new mark must see the stream as shared.
  if (!shared_.exchange(true)) MarkSubmitted();
  return Driver().stream_native != nullptr ? Driver().stream_native(handle) : static_cast<void*>(handle);
}

void Stream::Adopt(flagos_stream_t handle) noexcept {
  handle_.store(handle, std::memory_order_release);
  shared_.store(true);
  MarkSubmitted();
}

void Stream::DestroyHandle() noexcept {
  const std::lock_guard lock(mutex_);
  // Fails only for a handle that is destroyed already; the leak report that follows would name it.
  if (flagos_stream_t handle = handle_.exchange(nullptr)) static_cast<void>(Driver().stream_destroy(handle));
}

void DestroyStreamHandles() noexcept {
  for (const auto& slot : g_streams) {
    DeviceStreams* streams = slot.load(std::memory_order_acquire);
    if (streams == nullptr) continue;
    for (const auto& known : streams->known) {
      if (Stream* stream = known.load(std::memory_order_acquire)) stream->DestroyHandle();
    }
    const std::lock_guard lock(streams->mutex);
    for (Stream* stream : streams->external) stream->DestroyHandle();
  }
}

DeviceMarks::DeviceMarks(int device) {
  DeviceStreams* streams = g_streams[static_cast<size_t>(device)].load(std::memory_order_acquire);
  if (streams == nullptr) return;
  for (const auto& slot : streams->known) {
    Stream* stream = slot.load(std::memory_order_acquire);
    if (stream != nullptr && stream->Dirty()) marks_.emplace_back(stream, stream->Mark());
  }
}

void DeviceMarks::Drained() noexcept {
  for (auto& [stream, mark] : marks_) stream->MarkDrained(mark);
}

Stream* DefaultStreamIfMade(int device) noexcept {
  DeviceStreams* streams = g_streams[static_cast<size_t>(device)].load(std::memory_order_acquire);
  return streams != nullptr ? streams->known[0].load(std::memory_order_acquire) : nullptr;
}

Stream* CurrentStreamIfMade(int device) noexcept {
  if (Stream* current = ThreadStream(device)) return current;
  return DefaultStreamIfMade(device);
}

int StreamDevice(const Stream* stream) noexcept { return stream->device(); }
int64_t StreamId(const Stream* stream) noexcept { return stream->id(); }
int StreamPriority(const Stream* stream) noexcept { return stream->priority(); }

Stream* DefaultStream(int device) { return Known(StreamsOf(device, "default_stream"), device, 0, 0); }

Stream* CurrentStream(int device) {
  DeviceStreams& streams = StreamsOf(device, "current_stream");
  if (Stream* current = ThreadStream(device)) return current;
  return Known(streams, device, 0, 0);
}

Stream* StreamFromId(int device, int64_t id) {
  DeviceStreams& streams = StreamsOf(device, "stream_from_id");
  if (id == 0) return Known(streams, device, 0, 0);
  if (id > 0 && id < kFirstExternalId) {
    if (Stream* stream = streams.known[static_cast<size_t>(id)].load(std::memory_order_acquire)) return stream;
  } else if (id >= kFirstExternalId) {
    const std::lock_guard lock(streams.mutex);
    const auto index = static_cast<size_t>(id - kFirstExternalId);
    if (index < streams.external.size()) return streams.external[index];
  }
  throw Error(FLAGOS_INVALID_HANDLE,
              "stream_from_id: flagos:" + std::to_string(device) + " never handed out stream id " + std::to_string(id));
}

Stream* StreamFromPool(int device, int priority) {
  DeviceStreams& streams = StreamsOf(device, "stream_from_pool");
  LearnPriorities(streams, device);
  // torch takes any number: beyond the range means the nearest end.
  const int clamped = std::clamp(priority, streams.greatest, streams.least);
  const int level = clamped - streams.greatest;
  const uint32_t turn = streams.next[static_cast<size_t>(level)].fetch_add(1, std::memory_order_relaxed);
  const int64_t id = 1 + level * kStreamsPerPriority + static_cast<int>(turn % kStreamsPerPriority);
  return Known(streams, device, id, clamped);
}

Stream* ExternalStream(int device, void* native) {
  DeviceStreams& streams = StreamsOf(device, "external_stream");
  if (Driver().stream_wrap == nullptr) {
    throw Error(FLAGOS_UNSUPPORTED, "external_stream: driver " + GetDriverInfo().name + " cannot wrap streams");
  }
  const std::lock_guard lock(streams.mutex);
  MarkContext(device);
  flagos_stream_t handle = nullptr;
  CheckStatus(Driver().stream_wrap(device, native, &handle), "stream_wrap", device);
  auto* stream = new Stream(device, kFirstExternalId + static_cast<int64_t>(streams.external.size()), 0);
  stream->Adopt(handle);
  streams.external.push_back(stream);
  return stream;
}

Stream* ExchangeCurrentStream(Stream* stream) {
  Stream* previous = CurrentStream(stream->device());
  if (stream != previous) {
    t_current[stream->device()] = stream;
    g_any_current.store(true, std::memory_order_release);
  }
  return previous;
}

void* StreamNative(Stream* stream) {
  CheckNotForked("stream_native");
  return stream->Native();
}

bool QueryStream(Stream* stream) {
  CheckNotForked("stream_query");
  return stream->Query();
}

void SynchronizeStream(Stream* stream) {
  CheckNotForked("stream_synchronize");
  stream->Drain();
}

void StreamHostFunc(Stream* stream, flagos_host_func_t func, void* user_data) {
  CheckNotForked("stream_host_func");
  if (Driver().stream_host_func == nullptr) {
    // Without the entry the order is kept by waiting, which is visible in the counters.
    stream->Synchronize();
    func(user_data);
    return;
  }
  CheckStatus(Driver().stream_host_func(stream->Handle(), func, user_data), "stream_host_func", stream->device());
  stream->MarkSubmitted();
}

void KernelBegin(int device) {
  if (KernelsAreOrdered()) [[unlikely]] {
    // A stream that was never used has nothing to wait for.
    Stream* stream = CurrentStreamIfMade(device);
    if (stream == nullptr || !stream->Dirty()) return;
    CheckStatus(Driver().kernel_begin(stream->Handle()), "kernel_begin", device);
    return;
  }
  if (Stream* stream = CurrentStreamIfMade(device)) stream->Drain();
}

void KernelEnd(int device, const char* op, const flagos_access_t* accesses, size_t count) {
  CheckNotForked(op);
  flagos_kernel_t kernel{};
  kernel.struct_size = sizeof kernel;
  kernel.name = op;
  kernel.accesses = accesses;
  kernel.access_count = count;
  Stream* stream = CurrentStream(device);
  const flagos_status_t status = Driver().kernel_end(stream->Handle(), &kernel);
  stream->MarkSubmitted();
  CheckStatus(status, "kernel_end", device);
}

}  // namespace torch_fl::runtime
