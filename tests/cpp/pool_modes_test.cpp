// SPDX-License-Identifier: Apache-2.0
// What the driver's options do to memory: poison, misalign, several devices; and a driver without the optional entries.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "child.h"
#include "runtime/allocator.h"

namespace torch_fl::test {
namespace {

using runtime::Allocate;
using runtime::Copy;
using runtime::Free;

bool AllBytesAre(const unsigned char* bytes, size_t size, unsigned char value) {
  return std::all_of(bytes, bytes + size, [&](unsigned char byte) { return byte == value; });
}

TEST(Poison, FreshReusedAndFreedMemory) {
  for (const char* protect : {"0", "1"}) {
    InChild({{"FLAGOS_HOST_POISON", "1"}, {"FLAGOS_HOST_PROTECT", protect}}, [] {
      for (const size_t size : {size_t{100}, size_t{3} << 20}) {
        void* block = Allocate(0, size);
        EXPECT_TRUE(AllBytesAre(View(block), size, 0xFF)) << "fresh";
        std::memset(View(block), 1, size);
        Free(block);
        EXPECT_TRUE(AllBytesAre(View(block), size, 0xFD)) << "freed";
        ASSERT_EQ(Allocate(0, size), block);
        EXPECT_TRUE(AllBytesAre(View(block), size, 0xFF)) << "reused";
        Free(block);
      }
    });
  }
}

TEST(Poison, OffByDefault) {
  InChild({}, [] {
    void* block = Allocate(0, 100);
    std::memset(View(block), 1, 100);
    Free(block);
    EXPECT_TRUE(AllBytesAre(View(block), 100, 1));
  });
}

TEST(Misalign, AddressesKeepOnly16Bytes) {
  for (const char* protect : {"0", "1"}) {
    InChild({{"FLAGOS_HOST_MISALIGN", "1"}, {"FLAGOS_HOST_PROTECT", protect}}, [] {
      unsigned residues = 0;
      for (size_t size = 1; size < (200u << 20); size = size * 3 / 2 + 1) {
        void* block = Allocate(0, size);
        const auto address = reinterpret_cast<uintptr_t>(block);
        EXPECT_EQ(address % 16, 0u);
        EXPECT_NE(address % 64, 0u);
        residues |= 1u << (address % 64 / 16);
        EXPECT_TRUE(runtime::Owns(block, nullptr));
        std::memset(View(block), 1, std::min<size_t>(size, 8u << 20));
      }
      EXPECT_EQ(residues, 0b1110u) << "16, 32 and 48 all occur";
    });
  }
}

TEST(Misalign, AlignedByDefault) {
  InChild({}, [] {
    for (size_t size = 1; size < (8u << 20); size = size * 2 + 1) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(Allocate(0, size)) % 512, 0u);
    }
  });
}

TEST(Devices, AreSeparate) {
  InChild({{"FLAGOS_HOST_DEVICES", "2"}, {"FLAGOS_HOST_MEMORY", "32M"}}, [] {
    ASSERT_EQ(runtime::DeviceCount(), 2);
    void* on_zero = Allocate(0, 20u << 20);
    EXPECT_FALSE(runtime::HasContext(1));
    void* on_one = Allocate(1, 20u << 20);
    EXPECT_TRUE(runtime::HasContext(1));
    EXPECT_EQ(runtime::GetMemoryStats(1).allocated_bytes[runtime::kAllPools].current, 20u << 20);
    Free(on_zero);
    EXPECT_EQ(runtime::GetMemoryStats(0).allocated_bytes[runtime::kAllPools].current, 0u);
    EXPECT_EQ(runtime::GetMemoryStats(1).allocated_bytes[runtime::kAllPools].current, 20u << 20);
    Free(on_one);
    EXPECT_EQ(ErrorOf([] { Allocate(2, 1); }, FLAGOS_INVALID_DEVICE),
              "allocate: invalid device ordinal flagos:2; valid are 0 to 1");
    EXPECT_EQ(ErrorOf([] { Allocate(-1, 1); }, FLAGOS_INVALID_DEVICE),
              "allocate: invalid device ordinal flagos:-1; valid are 0 to 1");
    EXPECT_EQ(ErrorOf([] { runtime::SetDevice(7); }, FLAGOS_INVALID_DEVICE),
              "set_device: invalid device ordinal flagos:7; valid are 0 to 1");
    runtime::SetDevice(1);
    EXPECT_EQ(runtime::CurrentDevice(), 1);
    EXPECT_EQ(runtime::ExchangeDevice(0), 1);
    EXPECT_EQ(runtime::ExchangeDevice(-1), 0);
    EXPECT_EQ(runtime::CurrentDevice(), 0);
  });
}

// The same data through host -> 0 -> 1 -> host, synchronous and not.
void RoundTripThroughTwoDevices() {
  for (const bool async : {false, true}) {
    std::vector<int> data(100000);
    std::iota(data.begin(), data.end(), 7);
    const size_t size = data.size() * sizeof(int);
    void* first = Allocate(0, size);
    void* second = Allocate(1, size);
    std::vector<int> back(data.size());
    Copy(first, 0, data.data(), FLAGOS_HOST, size, async);
    Copy(second, 1, first, 0, size, async);
    // Device 0 may go on: the copy that reads it comes first.
    runtime::Fill(first, 0, 0, size);
    Copy(back.data(), FLAGOS_HOST, second, 1, size, async);
    runtime::SynchronizeDevice(0);
    runtime::SynchronizeDevice(1);
    EXPECT_EQ(back, data);
    Free(first);
    Free(second);
  }
}

TEST(Devices, CopyBetween) {
  for (const char* protect : {"0", "1"}) {
    InChild({{"FLAGOS_HOST_DEVICES", "2"}, {"FLAGOS_HOST_PROTECT", protect}}, RoundTripThroughTwoDevices);
  }
}

TEST(MinimalDriver, IsEmulated) {
  InChild({{"FLAGOS_DRIVER_PLUGIN", TEST_FIXTURES "/libtorch_fl_driver_minimal.so"}}, [] {
    EXPECT_EQ(runtime::GetDriverInfo().platform, "minimal");
    EXPECT_FALSE(runtime::HostView());
    ErrorOf([] { runtime::HostViewOffset(0); }, FLAGOS_UNSUPPORTED);
    ErrorOf([] { runtime::ExternalStream(0, nullptr); }, FLAGOS_UNSUPPORTED);
    RoundTripThroughTwoDevices();  // no peers: staged through the host

    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
    void* block = Allocate(0, 10u << 20);
    runtime::DeviceMemory(0, &free_bytes, &total_bytes);
    EXPECT_EQ(total_bytes, 64u << 20);
    EXPECT_EQ(free_bytes, total_bytes - runtime::GetMemoryStats(0).reserved_bytes[runtime::kAllPools].current);
    Free(block);

    int calls = 0;
    runtime::StreamHostFunc(runtime::DefaultStream(0), [](void* data) { ++*static_cast<int*>(data); }, &calls);
    EXPECT_EQ(calls, 1);
    runtime::Event* start = runtime::CreateEvent(0, true, false);
    runtime::Event* end = runtime::CreateEvent(0, true, false);
    ErrorOf([&] { runtime::ElapsedMs(start, end); }, FLAGOS_INVALID_HANDLE);
    runtime::RecordEvent(start, runtime::DefaultStream(0));
    usleep(2000);
    runtime::RecordEvent(end, runtime::DefaultStream(0));
    EXPECT_GE(runtime::ElapsedMs(start, end), 1.0);
    runtime::DestroyEvent(start);
    runtime::DestroyEvent(end);
  });
}

}  // namespace
}  // namespace torch_fl::test
