// SPDX-License-Identifier: Apache-2.0
// validate: its state, its texts, and the order check.
#include "runtime/layers/validate.h"

#include <cinttypes>
#include <cstdio>

namespace torch_fl::runtime {
namespace layers {
namespace validate {

const flagos_driver_v1_t* g_inner = nullptr;
std::atomic<State*> g_state{nullptr};
int32_t g_device_count = 0;  // written by Wrap

flagos_status_t Misuse(flagos_status_t status, const char* entry, int device, const std::string& text) {
  TheState().misuses.fetch_add(1, std::memory_order_relaxed);
  return Refuse(status, entry, device, "validate: %s: %s", entry, text.c_str());
}

std::string Hex(uintptr_t address) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%" PRIxPTR, address);
  return text;
}
std::string Hex(const void* pointer) { return Hex(reinterpret_cast<uintptr_t>(pointer)); }

bool KnownDevice(int device) { return device >= 0 && device < g_device_count; }

std::string DeviceName(int device) {
  return device == FLAGOS_HOST ? "page-locked host memory" : "flagos:" + std::to_string(device);
}

std::string WhyNotInside(State& state, int device, uintptr_t begin, size_t size) {
  std::string text =
      Hex(begin) + " +" + std::to_string(size) + " bytes is not inside one live block of " + DeviceName(device);
  if (const auto block = state.devices[device].memory.At(begin)) {
    return text + " (it begins " + std::to_string(begin - block->begin) + " bytes into the block " + Hex(block->begin) +
           " of " + std::to_string(block->size) + " bytes)";
  }
  for (const auto& [other, memory] : state.devices) {
    if (memory.memory.At(begin)) return text + " (it belongs to " + DeviceName(other) + ")";
  }
  if (state.IsPinned(begin, 1)) return text + " (it is page-locked host memory)";
  return text + " (no live block is there: freed before, never allocated, or host memory)";
}

StreamState* State::FindStream(const char* entry, flagos_stream_t stream) {
  const auto found = streams.find(stream);
  if (found != streams.end()) return &found->second;
  Misuse(FLAGOS_INVALID_HANDLE, entry, -1,
         stream == nullptr ? "the stream is NULL"
                           : "the stream " + Hex(stream) + " is not live: destroyed before, or never made");
  return nullptr;
}

EventState* State::FindEvent(const char* entry, flagos_event_t event) {
  const auto found = events.find(event);
  if (found != events.end()) return &found->second;
  Misuse(FLAGOS_INVALID_HANDLE, entry, -1,
         event == nullptr ? "the event is NULL"
                          : "the event " + Hex(event) + " is not live: destroyed before, or never made");
  return nullptr;
}

namespace {

std::string Describe(bool is_write, const char* name, const std::string& where, uint64_t number) {
  return std::string(is_write ? "write" : "read") + " by " + name + " " + where + " (#" + std::to_string(number) + ")";
}

std::string OnStream(uint32_t number) { return "on stream " + std::to_string(number); }

std::string Range(int device, uintptr_t begin, uintptr_t end) {
  return DeviceName(device) + " " + Hex(begin) + " +" + std::to_string(end - begin) + " bytes";
}

flagos_status_t Unordered(State& state, const Work& work, const Touch& touch, const std::string& mine,
                          const History::Conflict& conflict, uint64_t number) {
  state.unordered.fetch_add(1, std::memory_order_relaxed);
  const std::string theirs = OnStream(conflict.access.stream);
  const std::string stream = "stream " + std::to_string(conflict.access.stream);
  std::string remedy = mine.empty() ? "; synchronize with " + stream + " first"
                                    : "; record an event on " + stream + " and let " + mine.substr(3) + " wait for it";
  if (touch.device != FLAGOS_HOST) remedy += ", or call record_stream before the memory is freed";
  const std::string text = Describe(touch.is_write, work.name, mine.empty() ? "without a stream" : mine, number) +
                           " is not ordered behind " +
                           Describe(conflict.access.is_write, conflict.access.name, theirs, conflict.access.number) +
                           ": " + Range(touch.device, conflict.begin, conflict.end) + remedy;
  return Refuse(FLAGOS_UNORDERED, work.entry, touch.device, "%s", text.c_str());
}

}  // namespace

flagos_status_t State::Before(Work* work) {
  accesses.fetch_add(work->touches.size(), std::memory_order_relaxed);
  std::string mine;
  if (work->stream != nullptr) {
    const StreamState& stream = streams.at(work->stream);
    work->clock = order.Now(stream.slot);
    mine = OnStream(stream.number);
  } else {
    work->clock = order.OfDevices(work->devices[0], work->devices[1]);
  }
  for (const Touch& touch : work->touches) {
    const auto conflict =
        HistoryOf(touch.device).Find(touch.begin, touch.begin + touch.size, touch.is_write, work->clock);
    if (conflict) return Unordered(*this, *work, touch, mine, *conflict, order.NextNumber());
  }
  return FLAGOS_OK;
}

flagos_status_t State::After(const Work& work) {
  flagos_status_t status = FLAGOS_OK;
  const uint64_t number = order.NextNumber();
  const auto found = streams.find(work.stream);
  const bool queued = work.stream != nullptr;
  if (queued && found == streams.end()) return FLAGOS_OK;  // destroyed by another thread meanwhile
  const Clock& clock = queued ? order.Now(found->second.slot) : work.clock;
  const std::string mine = queued ? OnStream(found->second.number) : "";
  for (const Touch& touch : work.touches) {
    const uintptr_t end = touch.begin + touch.size;
    const auto conflict = HistoryOf(touch.device).Find(touch.begin, end, touch.is_write, clock);
    if (conflict && status == FLAGOS_OK) status = Unordered(*this, work, touch, mine, *conflict, number);
  }
  if (!queued) {
    // Complete now: it comes before whatever follows, as does all that it waited for.
    order.HostSaw(work.clock);
    return status;
  }
  for (const Touch& touch : work.touches) {
    const Access access{number, found->second.slot, found->second.number, work.name, touch.is_write};
    HistoryOf(touch.device).Record(touch.begin, touch.begin + touch.size, access, order.host());
  }
  order.Submitted(found->second.slot, number);
  return status;
}

flagos_status_t State::CheckIdle(const char* entry, uintptr_t begin, size_t size) {
  const auto conflict = host_history.Find(begin, begin + size, true, order.host());
  if (!conflict) return FLAGOS_OK;
  unordered.fetch_add(1, std::memory_order_relaxed);
  const std::string stream = OnStream(conflict->access.stream);
  const std::string text = Hex(begin) + " +" + std::to_string(size) +
                           " bytes may still be in use: nothing has seen the " +
                           Describe(conflict->access.is_write, conflict->access.name, stream, conflict->access.number) +
                           " end; synchronize with " + stream.substr(3) + " first";
  return Refuse(FLAGOS_UNORDERED, entry, -1, "validate: %s: %s", entry, text.c_str());
}

namespace {

uint64_t Capabilities() {
  const uint64_t bits = g_inner->capabilities();
  return (bits & FLAGOS_CAP_HOST_VIEW) != 0 ? bits | FLAGOS_CAP_KERNEL_ORDER : bits;
}

const flagos_driver_v1_t& Wrap(const flagos_driver_v1_t& inner, const LayerSpec&) {
  static flagos_driver_v1_t table;
  if (inner.device_count(&g_device_count) != FLAGOS_OK) g_device_count = 0;
  g_inner = &inner;
  // Fixed since init; asked for once.
  if (inner.device_count(&g_device_count) != FLAGOS_OK) g_device_count = 0;
  table = inner;
  InstallMemory(&table);
  InstallWork(&table);
  InstallStreams(&table);
  table.capabilities = &Capabilities;
  g_state.store(new State, std::memory_order_release);
  return table;
}

}  // namespace
}  // namespace validate

const Layer kValidate{"validate", &NoArguments, &validate::Wrap};

}  // namespace layers

ValidateCounts GetValidateCounts() {
  const layers::validate::State* state = layers::validate::g_state.load(std::memory_order_acquire);
  if (state == nullptr) layers::RaiseLayerOff("GetValidateCounts", "validate");
  return {state->accesses.load(), state->unordered.load(), state->misuses.load()};
}

}  // namespace torch_fl::runtime
