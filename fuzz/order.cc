// SPDX-License-Identifier: Apache-2.0
// What orders what, and the picks.
#include <cstring>

#include "program.h"

namespace torch_fl::fuzz {

Clock& Program::Submit(Queue* queue) {
  queue->clock.Join(host_);
  queue->idle = false;
  return queue->clock;
}

void Program::Queued(Queue* queue) { Submit(queue).at[queue->id] = ++queue->position; }

bool Program::Conflicts(const Memory& memory, bool write, const Clock& clock) const {
  return std::any_of(memory.accesses.begin(), memory.accesses.end(), [&](const Access& access) {
    return (write || access.write) && clock.at[access.queue] < access.position;
  });
}

bool Program::Order(Memory* memory, bool write, Queue* queue, bool may_race) {
  const auto clock = [&]() -> const Clock& { return queue != nullptr ? Submit(queue) : host_; };
  if (!Conflicts(*memory, write, clock())) return true;
  if (may_race && queue != nullptr && g_options.races && input_.Chance(12)) {
    // A copy that read these bytes earlier may see the new ones, and so on through its target.
    for (const auto& other : memories_) other->known = false;
    return false;
  }
  const std::vector<Access> accesses = memory->accesses;
  for (const Access& access : accesses) {
    if (clock().at[access.queue] >= access.position || (!write && !access.write)) continue;
    Queue* other = queues_[access.queue].get();
    if (other->handle == nullptr) {
      SyncDevice(other->device);
    } else if (queue == nullptr || input_.Chance(40)) {
      CALL(kOk, stream_sync, other->handle);
      JoinQueue(other);
    } else {
      flagos_event_t event = nullptr;
      CALL(kOk, event_create, other->device, FLAGOS_EVENT_DEFAULT, &event);
      CALL(kOk, event_record, event, other->handle);
      const Clock then = Submit(other);
      CALL(kOk, stream_wait, queue->handle, event);
      Submit(queue).Join(then);
      CALL(kOk, event_destroy, event);
    }
  }
  return true;
}

void Program::Touch(Memory* memory, bool write, Queue* queue) {
  std::erase_if(memory->accesses, [&](const Access& access) {
    return host_.at[access.queue] >= access.position || (write && queue->clock.at[access.queue] >= access.position) ||
           (access.queue == queue->id && !access.write && !write);
  });
  memory->accesses.push_back({queue->id, queue->position, write});
}

void Program::JoinQueue(Queue* queue) {
  queue->clock.Join(host_);
  host_.Join(queue->clock);
  queue->idle = true;
  const HostFunctions& functions = *queue->functions;
  if (functions.out_of_order) Die("host functions of a stream ran out of order");
  if (functions.ran != queue->host_functions) {
    Die("%u of %u host functions ran before the stream was synchronised", functions.ran.load(), queue->host_functions);
  }
}

// ---- Calls that make order, and those that ask for it

void Program::RecordEvent() {
  EventState* event = AnyEvent();
  Queue* queue = event != nullptr ? QueueOf(event->device) : nullptr;
  if (queue == nullptr) return;
  CALL(kOk, event_record, event->handle, queue->handle);
  event->clock = Submit(queue);
  event->recorded = true;
}

void Program::WaitEvent() {
  EventState* event = AnyEvent();
  Queue* queue = AnyQueue();
  if (event == nullptr || queue == nullptr) return;
  CALL(kOk, stream_wait, queue->handle, event->handle);
  Submit(queue).Join(event->clock);
}

void Program::QueryEvent() {
  EventState* event = AnyEvent();
  if (event == nullptr) return;
  if (CALL(event->recorded ? kOk | kNotReady : kOk, event_query, event->handle) == FLAGOS_OK) host_.Join(event->clock);
}

void Program::SyncEvent() {
  EventState* event = AnyEvent();
  if (event == nullptr) return;
  CALL(kOk, event_sync, event->handle);
  host_.Join(event->clock);
  CALL(kOk, event_query, event->handle);
}

void Program::Elapsed() {
  const EventState* start = AnyEvent();
  const EventState* end = AnyEvent();
  if (start == nullptr || D().event_elapsed == nullptr) return;
  float ms = 0;
  const bool valid = start->timing && end->timing && start->recorded && end->recorded && start->device == end->device;
  CALL(valid ? kOk | kNotReady : kBadHandle, event_elapsed, start->handle, end->handle, &ms);
  if (valid && start == end && ms != 0) Die("%g ms lie between an event and itself", static_cast<double>(ms));
}

void Program::QueryStream() {
  Queue* queue = AnyQueue();
  if (queue == nullptr) return;
  if (CALL(queue->idle ? kOk : kOk | kNotReady, stream_query, queue->handle) == FLAGOS_OK) JoinQueue(queue);
}

void Program::SyncStream() {
  Queue* queue = AnyQueue();
  if (queue == nullptr) return;
  CALL(kOk, stream_sync, queue->handle);
  JoinQueue(queue);
}

void Program::SyncDevice(int device) {
  CALL(kOk, device_sync, device);
  for (const auto& queue : queues_) {
    if (queue->device == device) JoinQueue(queue.get());
  }
}

// ---- Picks

Queue* Program::AnyQueue() {
  for (int tries = 0; tries < 8 && !queues_.empty(); ++tries) {
    Queue* queue = queues_[input_.Below(queues_.size())].get();
    if (queue->handle != nullptr) return queue;
  }
  return nullptr;
}

Queue* Program::QueueOf(int device) {
  for (int tries = 0; tries < 4; ++tries) {
    Queue* queue = AnyQueue();
    if (queue != nullptr && queue->device == device) return queue;
  }
  return nullptr;
}

EventState* Program::AnyEvent() { return events_.empty() ? nullptr : events_[input_.Below(events_.size())].get(); }

Memory* Program::AnyMemory(bool device_only) {
  for (int tries = 0; tries < 4 && !memories_.empty(); ++tries) {
    Memory* memory = memories_[input_.Below(memories_.size())].get();
    if (!device_only || memory->OnDevice()) return memory;
  }
  return nullptr;
}

void Program::Part(const Memory& memory, size_t* begin, size_t* size) {
  const size_t all = memory.bytes.size();
  *begin = 0;
  *size = all;
  if (input_.Chance(80)) return;
  *begin = input_.Word() % all;
  *size = 1 + input_.Word() % (all - *begin);
}

std::vector<uint8_t> Program::Data(size_t size) {
  std::vector<uint8_t> data(size);
  uint32_t state = input_.Word() * 2654435761u + 1;
  for (uint8_t& byte : data) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return data;
}

}  // namespace torch_fl::fuzz
