// SPDX-License-Identifier: Apache-2.0
// What the files of the validate layer share.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/internal.h"
#include "runtime/layers/blocks.h"
#include "runtime/layers/entries.h"
#include "runtime/layers/layer.h"
#include "runtime/layers/order.h"

namespace torch_fl::runtime::layers::validate {

struct StreamState {
  int device = -1;
  uint32_t slot = 0;
  uint32_t number = 0;           // for messages
  const void* native = nullptr;  // when it is known
};

struct EventState {
  int device = -1;
  uint32_t flags = 0;
  uint64_t records = 0;
  Clock clock;  // of the last record
};

struct DeviceState {
  Blocks memory;
  Blocks reservations;
  History history;
};

// Bytes that a piece of work reads or writes.
struct Touch {
  int device = FLAGOS_HOST;  // FLAGOS_HOST: page-locked host memory
  uintptr_t begin = 0;
  size_t size = 0;
  bool is_write = false;
};

struct Work {
  const char* entry;  // table function
  const char* name;   // operator
  flagos_stream_t stream = nullptr;
  std::array<int, 2> devices{-1, -1};  // for work without a stream: whose streams it waits for
  std::vector<Touch> touches{};
  Clock clock{};  // for work without a stream: what came before it
};

// Leaked: used until the process is gone. All but the counters is guarded by the mutex, which is never held while the
// inner table is called.
struct State {
  std::mutex mutex;
  Order order;
  std::unordered_map<flagos_stream_t, StreamState> streams;
  std::unordered_map<flagos_event_t, EventState> events;
  std::map<int, DeviceState> devices;
  Blocks pinned;      // host_alloc
  Blocks registered;  // host_register
  History host_history;
  std::unordered_set<std::string> names;  // of operators; their text is referred to by accesses
  uint32_t streams_made = 0;

  std::atomic<uint64_t> accesses{0};
  std::atomic<uint64_t> unordered{0};
  std::atomic<uint64_t> misuses{0};

  // NULL when the handle is not live; the failure is recorded then. With the mutex held.
  StreamState* FindStream(const char* entry, flagos_stream_t stream);
  EventState* FindEvent(const char* entry, flagos_event_t event);
  History& HistoryOf(int device) { return device == FLAGOS_HOST ? host_history : devices[device].history; }
  bool IsPinned(uintptr_t begin, size_t size) const {
    return pinned.Holds(begin, size) || registered.Holds(begin, size);
  }

  // Order, with the mutex held. Before asks whether the work may start; After notes it, and asks again for what other
  // threads did meanwhile. UNORDERED with its text, or OK.
  flagos_status_t Before(Work* work);
  flagos_status_t After(const Work& work);
  // For host memory that is given back while work may still use it.
  flagos_status_t CheckIdle(const char* entry, uintptr_t begin, size_t size);
};

extern const flagos_driver_v1_t* g_inner;
extern std::atomic<State*> g_state;
inline State& TheState() { return *g_state.load(std::memory_order_acquire); }

// Counts and records a misuse.
flagos_status_t Misuse(flagos_status_t status, const char* entry, int device, const std::string& text);
std::string Hex(const void* pointer);
std::string Hex(uintptr_t address);
std::string DeviceName(int device);
// False for an index that the driver is to refuse itself.
bool KnownDevice(int device);
// "is not inside one live block of flagos:0 (...)": why a range cannot be used. With the mutex held.
std::string WhyNotInside(State& state, int device, uintptr_t begin, size_t size);

bool InHostFunction() noexcept;
flagos_status_t RefuseInHostFunction(const char* entry);

// Ends every checked entry: a forked child passes, host functions may not call, no exception leaves.
template <class Forward, class Body>
flagos_status_t Checked(const char* entry, Forward&& forward, Body&& body) {
  if (InForkedChild()) [[unlikely]]
    return forward();
  if (InHostFunction()) [[unlikely]]
    return RefuseInHostFunction(entry);
  return NoThrow(entry, body);
}

// Each puts its functions into a table that is a copy of the inner one.
void InstallMemory(flagos_driver_v1_t* table);
void InstallWork(flagos_driver_v1_t* table);
void InstallStreams(flagos_driver_v1_t* table);

template <class Function>
void Put(Function*& entry, Function* function) {
  if (entry != nullptr) entry = function;
}

}  // namespace torch_fl::runtime::layers::validate
