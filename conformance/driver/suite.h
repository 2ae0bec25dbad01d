// SPDX-License-Identifier: Apache-2.0
// What the tests share: the table under test, owners of its objects, data, gates.
//
// The suite asks the table and its capabilities, never for a driver's name. Where a driver legitimately answers
// otherwise, its expectation file says so; a test has no case for one driver. What a device cannot do skips with a text
// that starts with "unsupported: ". Data is checked through copies.
//
// Ready for drivers of every kind: no test waits for a clock. What must be pending is held by a gate; what must end is
// waited for with the table's own calls, under a watchdog that ends the process and names the test.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "torch_fl/driver.h"

namespace torch_fl::suite {

// The driver, through the runtime's loader: completed, initialised, with its layers.
const flagos_driver_v1_t& D();
int DeviceCount();
bool Has(uint64_t capability);
std::string DriverPath();  // the library itself

#define NEED_DEVICES(n) \
  if (torch_fl::suite::DeviceCount() < (n)) GTEST_SKIP() << "unsupported: needs " << (n) << " devices"
#define NEED_ENTRY(entry) \
  if (torch_fl::suite::D().entry == nullptr) GTEST_SKIP() << "unsupported: " #entry
#define NEED_CAPABILITY(name) \
  if (!torch_fl::suite::Has(FLAGOS_CAP_##name)) GTEST_SKIP() << "unsupported: capability " #name
// A device whose streams can be held back.
#define NEED_GATES()            \
  NEED_DEVICES(1);              \
  NEED_ENTRY(stream_host_func); \
  NEED_CAPABILITY(ASYNC)

// "INVALID_VALUE (memory_free: ...)", what a failed check prints.
std::string Describe(flagos_status_t status);
testing::AssertionResult StatusIs(const char* wanted_text, const char* call_text, flagos_status_t wanted,
                                  flagos_status_t got);
// The status is that, and the last error says so and names the entry.
testing::AssertionResult FailedIn(const char* entry, const char* call, flagos_status_t wanted, flagos_status_t got);
// The same, where the interface leaves the choice between two statuses.
testing::AssertionResult FailedInEither(const char* entry, const char* call, flagos_status_t first,
                                        flagos_status_t second, flagos_status_t got);

#define EXPECT_STATUS(wanted, call) EXPECT_PRED_FORMAT2(torch_fl::suite::StatusIs, wanted, call)
#define ASSERT_STATUS(wanted, call) ASSERT_PRED_FORMAT2(torch_fl::suite::StatusIs, wanted, call)
#define EXPECT_OK(call) EXPECT_STATUS(FLAGOS_OK, call)
#define ASSERT_OK(call) ASSERT_STATUS(FLAGOS_OK, call)
#define EXPECT_FAILS(entry, wanted, ...) \
  EXPECT_TRUE(torch_fl::suite::FailedIn(#entry, #__VA_ARGS__, wanted, torch_fl::suite::D().entry(__VA_ARGS__)))
#define EXPECT_FAILS_EITHER(entry, first, second, ...) \
  EXPECT_TRUE(                                         \
      torch_fl::suite::FailedInEither(#entry, #__VA_ARGS__, first, second, torch_fl::suite::D().entry(__VA_ARGS__)))

// For set-up: throws, which GoogleTest reports as a failure of the test.
void Check(flagos_status_t status, const char* what);

using Bytes = std::vector<uint8_t>;
// Different for each seed and each position.
Bytes Pattern(size_t size, uint64_t seed);
// Equal, or where the first difference is: a megabyte is not printed.
testing::AssertionResult Same(const Bytes& wanted, const Bytes& got);

// ---- Owners. Destructors report a failure and go on.

class Block {
 public:
  Block(int device, size_t size);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void* get() const { return pointer_; }
  uint8_t* at(size_t offset) const { return static_cast<uint8_t*>(pointer_) + offset; }
  size_t size() const { return size_; }
  int device() const { return device_; }
  void* Release();  // the caller frees
  void Write(const Bytes& bytes, size_t offset = 0) const;  // complete when it returns
  Bytes Read() const { return Read(0, size_); }
  Bytes Read(size_t offset, size_t size) const;

 private:
  int device_;
  size_t size_;
  void* pointer_ = nullptr;
};

// Page-locked where the driver has such memory, pageable elsewhere.
class Pinned {
 public:
  explicit Pinned(size_t size);
  explicit Pinned(const Bytes& bytes);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  uint8_t* get() const { return pointer_; }
  size_t size() const { return size_; }
  Bytes Read() const { return Bytes(pointer_, pointer_ + size_); }

 private:
  size_t size_;
  uint8_t* pointer_ = nullptr;
  Bytes pageable_;
};

class Stream {
 public:
  explicit Stream(int device, int priority = 0);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  flagos_stream_t get() const { return handle_; }
  flagos_stream_t Release();
  void Sync() const { Check(D().stream_sync(handle_), "stream_sync"); }
  void Wait(flagos_event_t event) const { Check(D().stream_wait(handle_, event), "stream_wait"); }

 private:
  flagos_stream_t handle_ = nullptr;
};

class Event {
 public:
  explicit Event(int device, uint32_t flags = FLAGOS_EVENT_DEFAULT);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  flagos_event_t get() const { return handle_; }
  flagos_event_t Release();
  void Record(const Stream& stream) const { Check(D().event_record(handle_, stream.get()), "event_record"); }

 private:
  flagos_event_t handle_ = nullptr;
};

// Does the stream still have work after a while in which it could have done it? A driver that forgot a wait is given the time
// to show it; one that keeps the wait always passes.
bool StaysPending(const Stream& stream);

// Holds a stream back until it is opened; what is queued behind it stays pending. May die before the stream gets there.
// Calls without a stream and frees wait for it: no Block::Read or Write of its device while it is shut, and every Block
// and Pinned of the test is declared before it.
class Gate {
 public:
  explicit Gate(const Stream& stream);
  ~Gate() { Open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void Open();

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

void CopyIn(const Block& to, const void* from, size_t size, flagos_stream_t stream, size_t offset = 0);
void CopyOut(void* to, const Block& from, size_t size, flagos_stream_t stream, size_t offset = 0);
void CopyBlock(const Block& to, const Block& from, size_t size, flagos_stream_t stream);

// ---- Other processes

// Runs `body` in a forked child, which ends with its return value; -1 and a failure when it dies or takes over 30 s.
int RunForked(const std::function<int()>& body);
// Runs a scenario (SUITE_SCENARIO) in a fresh process; the same rules.
int RunScenario(const std::string& name);
using Scenario = int (*)();
bool RegisterScenario(const char* name, Scenario scenario);
// A body that runs in a process that did not load the driver yet. Its value is the exit status; 0 is good.
#define SUITE_SCENARIO(name)                                                                                 \
  int Scenario##name();                                                                                      \
  [[maybe_unused]] const bool registered_##name = torch_fl::suite::RegisterScenario(#name, &Scenario##name); \
  int Scenario##name()

}  // namespace torch_fl::suite
