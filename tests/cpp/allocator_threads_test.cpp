// SPDX-License-Identifier: Apache-2.0
// Eight threads allocate, pass on, record and free across streams, and check every byte they see. FLAGOS_TEST_SECONDS makes
// it run for longer than the suite has time for; FLAGOS_TEST_LAYERS puts layers round the driver.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "allocator_fixture.h"

namespace torch_fl::test {
namespace {

using runtime::Stream;

constexpr unsigned kThreads = 8;

struct Parcel {
  void* block = nullptr;
  size_t size = 0;
  uint8_t value = 0;  // what the block will hold when `ready` has passed
  runtime::Event* ready = nullptr;
};

// Blocks on their way to another thread, oldest first. They stay for a while, so that whoever still writes to a block
// that was handed out too early has the time to do harm.
class Channel {
 public:
  void Put(const Parcel& parcel) {
    const std::lock_guard lock(mutex_);
    parcels_.push_back(parcel);
  }
  bool Take(size_t leave, Parcel* out) {
    const std::lock_guard lock(mutex_);
    if (parcels_.size() <= leave) return false;
    *out = parcels_.front();
    parcels_.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  std::deque<Parcel> parcels_;
};

struct Shared {
  Channel channel;
  std::atomic<uint64_t> checked{0};
  std::atomic<uint64_t> wrong{0};
};

// The bytes through the stream's eyes: copied out in its order.
bool Holds(Stream* stream, const Parcel& parcel, std::vector<uint8_t>* bytes) {
  const OnStream on(stream);
  bytes->assign(parcel.size, static_cast<uint8_t>(~parcel.value));
  runtime::Copy(bytes->data(), FLAGOS_HOST, parcel.block, 0, parcel.size, /*async=*/false);
  for (const uint8_t byte : *bytes) {
    if (byte != parcel.value) return false;
  }
  return true;
}

void Work(unsigned seed, Shared* shared, const std::function<bool(uint64_t)>& more) {
  Stream* const own = runtime::StreamFromPool(0, 0);
  const OnStream on(own);
  uint32_t state = seed * 7919 + 1;
  const auto below = [&state](uint32_t n) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % n;
  };
  std::vector<uint8_t> bytes;
  for (uint64_t step = 0; more(step); ++step) {
    Parcel parcel;
    parcel.size = 1 + below(below(16) == 0 ? 3u << 20 : 5000);
    parcel.value = static_cast<uint8_t>(below(256));
    parcel.block = runtime::Allocate(0, parcel.size);
    runtime::Fill(parcel.block, 0, parcel.value, parcel.size);  // on our stream, not yet done
    parcel.ready = runtime::CreateEvent(0, false, false);
    runtime::RecordEvent(parcel.ready, own);
    shared->channel.Put(parcel);
    Parcel taken;
    if (!shared->channel.Take(4 * kThreads, &taken)) continue;
    runtime::StreamWaitEvent(own, taken.ready);
    runtime::DestroyEvent(taken.ready);
    if (below(4) == 0) {
      shared->wrong.fetch_add(Holds(own, taken, &bytes) ? 0 : 1);
      shared->checked.fetch_add(1);
    } else {
      // Our stream is late and overwrites the block after it was freed: whoever gets it next would see the wrong bytes if
      // the use were forgotten.
      if (below(4) == 0) runtime::StreamHostFunc(own, [](void*) { usleep(300); }, nullptr);
      runtime::Fill(taken.block, 0, static_cast<uint8_t>(~taken.value), taken.size);
    }
    runtime::RecordStream(taken.block, own);
    runtime::Free(taken.block);
    if (below(500) == 0) runtime::EmptyCache();
    if (below(100) == 0) runtime::GetMemoryStats(0);
  }
}

void EightThreads() {
  const char* seconds = std::getenv("FLAGOS_TEST_SECONDS_IN_CHILD");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds != nullptr ? std::atoi(seconds) : 0);
  const auto more = [&](uint64_t step) {
    return seconds != nullptr ? std::chrono::steady_clock::now() < end : step < 300;
  };
  Shared shared;
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= kThreads; ++seed) threads.emplace_back(Work, seed, &shared, more);
  for (auto& thread : threads) thread.join();
  Parcel rest;
  while (shared.channel.Take(0, &rest)) {
    runtime::DestroyEvent(rest.ready);
    runtime::Free(rest.block);
  }
  EXPECT_EQ(shared.wrong.load(), 0u);
  EXPECT_GT(shared.checked.load(), 100u);
  ExpectConsistent();
  runtime::EmptyCache();
  EXPECT_EQ(Reserved(), 0);
  EXPECT_EQ(Total(runtime::GetMemoryStats(0).active).current, 0);
  if (seconds != nullptr) std::printf("checked %llu blocks\n", static_cast<unsigned long long>(shared.checked.load()));
}

TEST(AllocatorThreads, AcrossStreams) {
  Environment environment{{"FLAGOS_HOST_MEMORY", "2G"}};
  if (const char* seconds = std::getenv("FLAGOS_TEST_SECONDS")) {
    environment.emplace_back("FLAGOS_TEST_SECONDS_IN_CHILD", seconds);
  }
  if (const char* layers = std::getenv("FLAGOS_TEST_LAYERS")) environment.emplace_back("FLAGOS_DRIVER_LAYERS", layers);
  for (const char* queue : {"eager", "lazy"}) {
    SCOPED_TRACE(queue);
    Environment full = environment;
    full.emplace_back("FLAGOS_HOST_QUEUE", queue);
    InChild(full, EightThreads);
  }
}

}  // namespace
}  // namespace torch_fl::test
