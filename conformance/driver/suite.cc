// SPDX-License-Identifier: Apache-2.0
#include "suite.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/runtime.h"

namespace torch_fl::suite {

const flagos_driver_v1_t& D() { return runtime::Driver(); }

int DeviceCount() {
  int32_t count = 0;
  Check(D().device_count(&count), "device_count");
  return count;
}

bool Has(uint64_t capability) { return (D().capabilities() & capability) != 0; }

std::string DriverPath() { return runtime::GetDriverInfo().path; }

std::string Describe(flagos_status_t status) {
  std::string text = StatusName(status);
  if (status == FLAGOS_OK || status == FLAGOS_NOT_READY) return text;
  const flagos_error_t* error = D().last_error();
  return text + " (" + error->function + ": " + error->vendor_text + ")";
}

testing::AssertionResult StatusIs(const char*, const char* call_text, flagos_status_t wanted, flagos_status_t got) {
  if (wanted == got) return testing::AssertionSuccess();
  return testing::AssertionFailure() << call_text << " is " << Describe(got) << ", wanted " << StatusName(wanted);
}

testing::AssertionResult FailedInEither(const char* entry, const char* call, flagos_status_t first,
                                        flagos_status_t second, flagos_status_t got) {
  const auto failure = [&] { return testing::AssertionFailure() << entry << "(" << call << ") is " << Describe(got); };
  if (got != first && got != second) {
    auto result = failure() << ", wanted " << StatusName(first);
    if (second != first) result << " or " << StatusName(second);
    return result;
  }
  const flagos_error_t* error = D().last_error();
  if (error->status != got) return failure() << ", but the last error has status " << StatusName(error->status);
  if (error->function == nullptr || std::strcmp(error->function, entry) != 0) {
    return failure() << ", but the last error names " << (error->function != nullptr ? error->function : "NULL");
  }
  if (error->vendor_text == nullptr || error->vendor_text[0] == 0) return failure() << " without a text";
  return testing::AssertionSuccess();
}

testing::AssertionResult FailedIn(const char* entry, const char* call, flagos_status_t wanted, flagos_status_t got) {
  return FailedInEither(entry, call, wanted, wanted, got);
}

void Check(flagos_status_t status, const char* what) {
  if (status != FLAGOS_OK) throw Error(status, std::string(what) + " is " + Describe(status));
}

Bytes Pattern(size_t size, uint64_t seed) {
  Bytes bytes(size);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 0x632BE59BD9B4E019u;
  for (size_t i = 0; i < size; ++i) {
    if (i % 8 == 0) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
    }
    bytes[i] = static_cast<uint8_t>(state >> (i % 8 * 8));
  }
  return bytes;
}

testing::AssertionResult Same(const Bytes& wanted, const Bytes& got) {
  if (wanted.size() != got.size()) {
    return testing::AssertionFailure() << got.size() << " bytes, wanted " << wanted.size();
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == got[i]) continue;
    return testing::AssertionFailure() << "byte " << i << " of " << wanted.size() << " is " << int{got[i]}
                                       << ", wanted " << int{wanted[i]};
  }
  return testing::AssertionSuccess();
}

Block::Block(int device, size_t size) : device_(device), size_(size) {
  Check(D().memory_alloc(device, size, &pointer_), "memory_alloc");
  if (size != 0 && pointer_ == nullptr) throw Error(FLAGOS_INVALID_VALUE, "memory_alloc gave NULL");
}

Block::~Block() {
  if (pointer_ != nullptr) {
    EXPECT_OK(D().memory_free(device_, pointer_));
  }
}

void* Block::Release() { return std::exchange(pointer_, nullptr); }

void Block::Write(const Bytes& bytes, size_t offset) const {
  Check(D().copy(at(offset), device_, bytes.data(), FLAGOS_HOST, bytes.size(), nullptr), "copy to the device");
}

Bytes Block::Read(size_t offset, size_t size) const {
  Bytes bytes(size, 0xEE);
  Check(D().copy(bytes.data(), FLAGOS_HOST, at(offset), device_, size, nullptr), "copy from the device");
  return bytes;
}

Pinned::Pinned(size_t size) : size_(size) {
  if (D().host_alloc == nullptr) {
    pageable_.resize(size);
    pointer_ = pageable_.data();
    return;
  }
  void* pointer = nullptr;
  Check(D().host_alloc(size, &pointer), "host_alloc");
  pointer_ = static_cast<uint8_t*>(pointer);
  if (size != 0) std::memset(pointer_, 0xEE, size);
}

Pinned::Pinned(const Bytes& bytes) : Pinned(bytes.size()) {
  if (!bytes.empty()) std::memcpy(pointer_, bytes.data(), bytes.size());
}

Pinned::~Pinned() {
  if (D().host_alloc != nullptr && pointer_ != nullptr) {
    EXPECT_OK(D().host_free(pointer_));
  }
}

Stream::Stream(int device, int priority) {
  Check(D().stream_create(device, FLAGOS_STREAM_DEFAULT, priority, &handle_), "stream_create");
}

Stream::~Stream() {
  if (handle_ != nullptr) {
    EXPECT_OK(D().stream_destroy(handle_));
  }
}

flagos_stream_t Stream::Release() { return std::exchange(handle_, nullptr); }

Event::Event(int device, uint32_t flags) { Check(D().event_create(device, flags, &handle_), "event_create"); }

Event::~Event() {
  if (handle_ != nullptr) {
    EXPECT_OK(D().event_destroy(handle_));
  }
}

flagos_event_t Event::Release() { return std::exchange(handle_, nullptr); }

Gate::Gate(const Stream& stream) {
  auto* const shared = new std::shared_ptr<State>(state_);
  const auto hold = [](void* data) {
    const std::unique_ptr<std::shared_ptr<State>> owned(static_cast<std::shared_ptr<State>*>(data));
    State& state = **owned;
    std::unique_lock lock(state.mutex);
    state.changed.wait(lock, [&] { return state.open; });
  };
  Check(D().stream_host_func(stream.get(), hold, shared), "stream_host_func");
}

bool StaysPending(const Stream& stream) {
  for (int i = 0; i < 20; ++i) {
    if (D().stream_query(stream.get()) != FLAGOS_NOT_READY) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

void Gate::Open() {
  const std::lock_guard lock(state_->mutex);
  state_->open = true;
  state_->changed.notify_all();
}

void CopyIn(const Block& to, const void* from, size_t size, flagos_stream_t stream, size_t offset) {
  Check(D().copy(to.at(offset), to.device(), from, FLAGOS_HOST, size, stream), "copy to the device");
}

void CopyOut(void* to, const Block& from, size_t size, flagos_stream_t stream, size_t offset) {
  Check(D().copy(to, FLAGOS_HOST, from.at(offset), from.device(), size, stream), "copy from the device");
}

void CopyBlock(const Block& to, const Block& from, size_t size, flagos_stream_t stream) {
  Check(D().copy(to.get(), to.device(), from.get(), from.device(), size, stream), "copy on the device");
}

}  // namespace torch_fl::suite
