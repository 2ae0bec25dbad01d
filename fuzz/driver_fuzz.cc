// SPDX-License-Identifier: Apache-2.0
// Programs: objects, work, order. Misuse is in misuse.cc.
#include "driver_fuzz.h"

#include <cstdlib>
#include <cstring>

#include "program.h"

namespace torch_fl::fuzz {

Options g_options;

namespace {

constexpr size_t kMaxStreams = 6;
constexpr size_t kMaxEvents = 8;
constexpr size_t kMaxMemories = 10;
constexpr size_t kPage = 4096;

struct Ticket {
  std::shared_ptr<HostFunctions> functions;
  uint32_t number;
};

void RunTicket(void* data) {
  const std::unique_ptr<Ticket> ticket(static_cast<Ticket*>(data));
  if (ticket->functions->ran.load() != ticket->number) ticket->functions->out_of_order = true;
  ticket->functions->ran = ticket->number + 1;
}

}  // namespace

Program::Program(const uint8_t* data, size_t size) : input_(data, size), capabilities_(D().capabilities()) {
  int32_t count = 0;
  CALL(kOk, device_count, &count);
  devices_ = count;
}

void Program::Run() {
  if (devices_ == 0) return;
  while (!input_.Empty()) Step();
  Finish();
}

void Program::Step() {
  const int choice = input_.Byte();
  if (choice < 12) return MakeStream();
  if (choice < 18) return DestroyStream();
  if (choice < 28) return MakeEvent();
  if (choice < 34) return DestroyEvent();
  if (choice < 50) return MakeBlock();
  if (choice < 52) return MakeMapped();
  if (choice < 56) return MakePinned();
  if (choice < 58) return MakeRegistered();
  if (choice < 64) return FreeMemory();
  if (choice < 84) return Fill();
  if (choice < 104) return CopyFromPageable();
  if (choice < 114) return CopyToPageable();
  if (choice < 148) return CopyBetween();
  if (choice < 160) return Kernel();
  if (choice < 168) return HostFunction();
  if (choice < 172) return WriteOnHost();
  if (choice < 174) return WrapStream();
  if (choice < 186) return RecordEvent();
  if (choice < 198) return WaitEvent();
  if (choice < 204) return QueryEvent();
  if (choice < 208) return SyncEvent();
  if (choice < 212) return Elapsed();
  if (choice < 218) return QueryStream();
  if (choice < 224) return SyncStream();
  if (choice < 226) return SyncDevice(input_.Below(devices_));
  if (choice < 234) return Ask();
  Misuse();
}

void Program::Finish() {
  for (int device = 0; device < devices_; ++device) SyncDevice(device);
  for (const auto& memory : memories_) Verify(*memory);
  while (!memories_.empty()) {
    Free(memories_.back().get());
    memories_.pop_back();
  }
  for (const auto& event : events_) CALL(kOk, event_destroy, event->handle);
  for (const auto& queue : queues_) {
    if (queue->handle != nullptr) CALL(kOk, stream_destroy, queue->handle);
  }
}

// ---- Objects

void Program::MakeStream() {
  const auto live = std::count_if(queues_.begin(), queues_.end(), [](const auto& q) { return q->handle != nullptr; });
  if (static_cast<size_t>(live) >= kMaxStreams || queues_.size() >= kMaxQueues) return;
  auto queue = std::make_unique<Queue>();
  queue->device = input_.Below(devices_);
  queue->id = static_cast<int>(queues_.size());
  int32_t priority = 0;
  if (D().stream_priority_range != nullptr && input_.Chance(64)) {
    int32_t least = 0;
    CALL(kOk, stream_priority_range, queue->device, &least, &priority);
    if (priority > least) Die("the greatest priority %d is a higher number than the least %d", priority, least);
  }
  CALL(kOk, stream_create, queue->device, FLAGOS_STREAM_DEFAULT, priority, &queue->handle);
  if (queue->handle == nullptr) Die("stream_create gave NULL");
  queues_.push_back(std::move(queue));
}

void Program::DestroyStream() {
  Queue* queue = AnyQueue();
  if (queue == nullptr) return;
  CALL(kOk, stream_destroy, queue->handle);
  dead_streams_.push_back(queue->handle);
  queue->handle = nullptr;
}

void Program::MakeEvent() {
  if (events_.size() >= kMaxEvents) return;
  auto event = std::make_unique<EventState>();
  event->device = input_.Below(devices_);
  const uint32_t flags = input_.Byte() & (FLAGOS_EVENT_TIMING | FLAGOS_EVENT_BLOCKING);
  event->timing = (flags & FLAGOS_EVENT_TIMING) != 0;
  CALL(kOk, event_create, event->device, flags, &event->handle);
  if (event->handle == nullptr) Die("event_create gave NULL");
  events_.push_back(std::move(event));
}

void Program::DestroyEvent() {
  if (events_.empty()) return;
  const int index = input_.Below(events_.size());
  CALL(kOk, event_destroy, events_[index]->handle);
  dead_events_.push_back(events_[index]->handle);
  events_.erase(events_.begin() + index);
}

void Program::MakeBlock() {
  if (memories_.size() >= kMaxMemories) return;
  auto memory = std::make_unique<Memory>();
  memory->kind = Kind::kBlock;
  memory->device = input_.Below(devices_);
  const size_t size = 1 + (input_.Chance(16) ? input_.Word() * 2 : input_.Word() % 5000);
  void* pointer = nullptr;
  if (CALL(kOk | kNoMemory, memory_alloc, memory->device, size, &pointer) != FLAGOS_OK) return;
  const size_t alignment = D().memory_alignment != nullptr ? D().memory_alignment() : 64;
  if (pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % alignment != 0) Die("memory_alloc gave %p", pointer);
  memory->pointer = static_cast<uint8_t*>(pointer);
  memory->bytes.resize(size);
  memories_.push_back(std::move(memory));
}

// Two mappings that touch; the memory is a range across their border.
void Program::MakeMapped() {
  if (memories_.size() >= kMaxMemories || D().memory_reserve == nullptr) return;
  auto memory = std::make_unique<Memory>();
  memory->kind = Kind::kMapped;
  memory->device = input_.Below(devices_);
  size_t granule = 0;
  CALL(kOk, memory_granularity, memory->device, &granule);
  void* pointer = nullptr;
  if (CALL(kOk | kNoMemory, memory_reserve, memory->device, 2 * granule, &pointer) != FLAGOS_OK) return;
  memory->base = static_cast<uint8_t*>(pointer);
  memory->base_size = granule;
  for (int i = 0; i < 2; ++i) {
    if (CALL(kOk | kNoMemory, memory_map, memory->device, memory->base + i * granule, granule) == FLAGOS_OK) continue;
    if (i == 1) CALL(kOk, memory_unmap, memory->device, memory->base, granule);
    CALL(kOk, memory_release, memory->device, memory->base, 2 * granule);
    return;
  }
  memory->bytes.resize(2 + input_.Word() % 3000);
  memory->pointer = memory->base + granule - memory->bytes.size() / 2;
  memories_.push_back(std::move(memory));
}

void Program::MakePinned() {
  if (memories_.size() >= kMaxMemories || D().host_alloc == nullptr) return;
  auto memory = std::make_unique<Memory>();
  memory->kind = Kind::kPinned;
  memory->device = FLAGOS_HOST;
  memory->bytes = Data(1 + input_.Word() % 5000);
  void* pointer = nullptr;
  if (CALL(kOk | kNoMemory, host_alloc, memory->bytes.size(), &pointer) != FLAGOS_OK) return;
  memory->pointer = static_cast<uint8_t*>(pointer);
  std::memcpy(memory->pointer, memory->bytes.data(), memory->bytes.size());
  memory->known = true;
  memories_.push_back(std::move(memory));
}

void Program::MakeRegistered() {
  if (memories_.size() >= kMaxMemories || D().host_register == nullptr) return;
  auto memory = std::make_unique<Memory>();
  memory->kind = Kind::kRegistered;
  memory->device = FLAGOS_HOST;
  memory->base_size = 2 * kPage;
  memory->base = static_cast<uint8_t*>(std::aligned_alloc(kPage, memory->base_size));
  if (memory->base == nullptr) return;
  memory->bytes = Data(memory->base_size);
  memory->pointer = memory->base;
  std::memcpy(memory->base, memory->bytes.data(), memory->base_size);
  CALL(kOk, host_register, memory->base, memory->base_size);
  memory->known = true;
  memories_.push_back(std::move(memory));
}

void Program::Free(Memory* memory) {
  // Device memory may be freed with work pending. What host_free promises about that is nothing.
  if (!memory->OnDevice()) Order(memory, true, nullptr, false);
  switch (memory->kind) {
    case Kind::kBlock:
      CALL(kOk, memory_free, memory->device, memory->pointer);
      break;
    case Kind::kMapped:
      CALL(kOk, memory_unmap, memory->device, memory->base, memory->base_size);
      CALL(kOk, memory_unmap, memory->device, memory->base + memory->base_size, memory->base_size);
      CALL(kOk, memory_release, memory->device, memory->base, 2 * memory->base_size);
      break;
    case Kind::kPinned:
      CALL(kOk, host_free, memory->pointer);
      break;
    case Kind::kRegistered:
      CALL(kOk, host_unregister, memory->base);
      std::free(memory->base);
      break;
  }
}

void Program::FreeMemory() {
  if (memories_.empty()) return;
  const int index = input_.Below(memories_.size());
  if (input_.Chance(128)) {
    Order(memories_[index].get(), false, nullptr, false);
    Verify(*memories_[index]);
  }
  Free(memories_[index].get());
  memories_.erase(memories_.begin() + index);
}

// ---- Work. A race may be refused by a layer that sees it.

void Program::Fill() {
  Memory* memory = AnyMemory(true);
  if (memory == nullptr) return;
  size_t begin = 0;
  size_t size = 0;
  Part(*memory, &begin, &size);
  const uint8_t value = input_.Byte();
  Queue* queue = input_.Chance(24) ? nullptr : QueueOf(memory->device);
  const bool ordered = Order(memory, true, queue, true);
  CALL(ordered ? kOk : kOk | kUnordered, fill, memory->pointer + begin, memory->device, value, size,
       queue != nullptr ? queue->handle : nullptr);
  if (queue != nullptr) {
    Queued(queue);
    Touch(memory, true, queue);
  }
  std::memset(memory->bytes.data() + begin, value, size);
  if (ordered && size == memory->bytes.size()) memory->known = true;
}

void Program::CopyFromPageable() {
  Memory* memory = AnyMemory(true);
  if (memory == nullptr) return;
  size_t begin = 0;
  size_t size = 0;
  Part(*memory, &begin, &size);
  Queue* queue = input_.Chance(32) ? nullptr : QueueOf(memory->device);
  const bool ordered = Order(memory, true, queue, true);
  {
    std::vector<uint8_t> data = Data(size);
    std::copy(data.begin(), data.end(), memory->bytes.begin() + static_cast<ptrdiff_t>(begin));
    CALL(ordered ? kOk : kOk | kUnordered, copy, memory->pointer + begin, memory->device, data.data(), FLAGOS_HOST,
         size, queue != nullptr ? queue->handle : nullptr);
    std::fill(data.begin(), data.end(), uint8_t{0x5A});  // it has been read
  }
  if (queue != nullptr) {
    Queued(queue);
    Touch(memory, true, queue);
  }
  if (ordered && size == memory->bytes.size()) memory->known = true;
}

void Program::CopyToPageable() {
  Memory* memory = AnyMemory(true);
  if (memory == nullptr) return;
  size_t begin = 0;
  size_t size = 0;
  Part(*memory, &begin, &size);
  Queue* queue = input_.Chance(64) ? nullptr : QueueOf(memory->device);
  const bool ordered = Order(memory, false, queue, true);
  const bool known = ordered && memory->known;
  std::vector<uint8_t> data(size, 0xEE);
  const flagos_status_t status =
      CALL(ordered ? kOk : kOk | kUnordered, copy, data.data(), FLAGOS_HOST, memory->pointer + begin, memory->device,
           size, queue != nullptr ? queue->handle : nullptr);
  if (queue != nullptr) {
    Queued(queue);
    Touch(memory, false, queue);
    CALL(kOk, stream_sync, queue->handle);
    JoinQueue(queue);
  }
  if (status == FLAGOS_OK && known && std::memcmp(data.data(), memory->bytes.data() + begin, size) != 0) {
    Die("a copy of %zu bytes from %p on device %d does not hold what was written", size,
        static_cast<void*>(memory->pointer + begin), memory->device);
  }
}

void Program::CopyBetween() {
  Memory* dst = AnyMemory(false);
  Memory* src = AnyMemory(false);
  if (dst == nullptr || src == nullptr || dst == src || (!dst->OnDevice() && !src->OnDevice())) return;
  const bool peers = dst->OnDevice() && src->OnDevice() && dst->device != src->device;
  if (peers && D().peer_can_access == nullptr) return;
  size_t to = 0;
  size_t size = 0;
  Part(*dst, &to, &size);
  size = std::min(size, src->bytes.size());
  const size_t from = input_.Word() % (src->bytes.size() - size + 1);
  const int side = src->OnDevice() && (!dst->OnDevice() || input_.Chance(128)) ? src->device : dst->device;
  Queue* queue = input_.Chance(24) ? nullptr : QueueOf(side);
  const bool dst_ordered = Order(dst, true, queue, true);
  const bool src_ordered = Order(src, false, queue, true);
  // The second Order may have synchronised or raced; neither takes back what the first one reached.
  const bool ordered = dst_ordered && src_ordered;
  CALL(ordered ? kOk : kOk | kUnordered, copy, dst->pointer + to, dst->device, src->pointer + from, src->device, size,
       queue != nullptr ? queue->handle : nullptr);
  if (queue != nullptr) {
    Queued(queue);
    Touch(dst, true, queue);
    Touch(src, false, queue);
  }
  std::memcpy(dst->bytes.data() + to, src->bytes.data() + from, size);
  if (!ordered || !src->known) {
    dst->known = false;
  } else if (size == dst->bytes.size()) {
    dst->known = true;
  }
}

// Adds one to each byte of a part, on the calling thread.
void Program::Kernel() {
  if ((capabilities_ & FLAGOS_CAP_KERNEL_ORDER) == 0) return;
  Memory* memory = AnyMemory(true);
  if (memory == nullptr || memory->kind != Kind::kBlock) return;
  Queue* queue = QueueOf(memory->device);
  if (queue == nullptr) return;
  size_t begin = 0;
  size_t size = 0;
  Part(*memory, &begin, &size);
  Order(memory, true, queue, false);
  ptrdiff_t offset = 0;
  CALL(kOk, host_view_offset, memory->device, &offset);
  CALL(kOk, kernel_begin, queue->handle);
  uint8_t* view = memory->pointer + begin + offset;
  if (memory->known && std::memcmp(view, memory->bytes.data() + begin, size) != 0) {
    Die("a kernel does not see what was written before it at %p", static_cast<void*>(memory->pointer + begin));
  }
  for (size_t i = 0; i < size; ++i) {
    ++view[i];
    ++memory->bytes[begin + i];
  }
  const flagos_access_t access{memory->pointer + begin, size, 1};
  const flagos_kernel_t kernel{sizeof(flagos_kernel_t), "fuzz::increment", &access, 1};
  CALL(kOk, kernel_end, queue->handle, &kernel);
  Queued(queue);
  Touch(memory, true, queue);
}

void Program::HostFunction() {
  Queue* queue = AnyQueue();
  if (queue == nullptr || D().stream_host_func == nullptr) return;
  Submit(queue);
  CALL(kOk, stream_host_func, queue->handle, RunTicket, new Ticket{queue->functions, queue->host_functions++});
}

void Program::WriteOnHost() {
  Memory* memory = AnyMemory(false);
  if (memory == nullptr || memory->OnDevice()) return;
  Order(memory, true, nullptr, false);
  memory->accesses.clear();
  Verify(*memory);
  memory->bytes = Data(memory->bytes.size());
  std::memcpy(memory->pointer, memory->bytes.data(), memory->bytes.size());
  memory->known = true;
}

// A second handle of the same queue for one call.
void Program::WrapStream() {
  Memory* memory = AnyMemory(true);
  Queue* queue = memory != nullptr ? QueueOf(memory->device) : nullptr;
  if (queue == nullptr || D().stream_wrap == nullptr) return;
  void* native = D().stream_native != nullptr ? D().stream_native(queue->handle) : queue->handle;
  flagos_stream_t wrapper = nullptr;
  CALL(kOk, stream_wrap, queue->device, native, &wrapper);
  Order(memory, true, queue, false);
  const uint8_t value = input_.Byte();
  CALL(kOk, fill, memory->pointer, memory->device, value, memory->bytes.size(), wrapper);
  Queued(queue);
  Touch(memory, true, queue);
  std::fill(memory->bytes.begin(), memory->bytes.end(), value);
  memory->known = true;
  CALL(kOk, stream_destroy, wrapper);
}

void Program::Verify(const Memory& memory) {
  if (!memory.known) return;
  std::vector<uint8_t> read(memory.bytes.size());
  if (memory.OnDevice()) {
    CALL(kOk, copy, read.data(), FLAGOS_HOST, memory.pointer, memory.device, read.size(), nullptr);
  } else {
    std::memcpy(read.data(), memory.pointer, read.size());
  }
  for (size_t i = 0; i < read.size(); ++i) {
    if (read[i] == memory.bytes[i]) continue;
    Die("byte %zu of %zu at %p (device %d) is %d, wanted %d", i, read.size(), static_cast<void*>(memory.pointer),
        memory.device, read[i], memory.bytes[i]);
  }
}

void RunProgram(const uint8_t* data, size_t size) { Program(data, size).Run(); }

}  // namespace torch_fl::fuzz
