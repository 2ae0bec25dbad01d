// SPDX-License-Identifier: Apache-2.0
// The host driver's address space apart from memory: memory_reserve and what is mapped in it.
#include <cstring>

#include "host_driver.h"

namespace torch_fl::test {
namespace {

constexpr size_t kUnit = size_t{2} << 20;

uint64_t FreeBytes(int device = 0) {
  uint64_t free = 0;
  uint64_t total = 0;
  EXPECT_EQ(D().device_memory(device, &free, &total), FLAGOS_OK);
  return free;
}

char* Reserve(size_t size, int device = 0) {
  void* pointer = nullptr;
  EXPECT_EQ(D().memory_reserve(device, size, &pointer), FLAGOS_OK);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pointer) % kUnit, 0u);
  return static_cast<char*>(pointer);
}

TEST(HostReservation, CountsOnlyWhatIsMapped) {
  InQueueModes({{"FLAGOS_HOST_MEMORY", "16M"}, {"FLAGOS_HOST_DEVICES", "2"}}, [] {
    size_t granularity = 0;
    ASSERT_EQ(D().memory_granularity(0, &granularity), FLAGOS_OK);
    ASSERT_EQ(granularity, kUnit);
    const uint64_t all = FreeBytes();
    char* base = Reserve(64 * kUnit);  // eight times the memory
    EXPECT_EQ(FreeBytes(), all);
    ASSERT_EQ(D().memory_map(0, base + 2 * kUnit, 3 * kUnit), FLAGOS_OK);
    EXPECT_EQ(FreeBytes(), all - 3 * kUnit);
    EXPECT_EQ(FreeBytes(1), all);
    void* block = nullptr;
    ASSERT_EQ(D().memory_alloc(0, 4 * kUnit, &block), FLAGOS_OK);
    ExpectFails(D().memory_map(0, base, 2 * kUnit), FLAGOS_OUT_OF_MEMORY, "memory_map");
    ASSERT_EQ(D().memory_map(0, base, kUnit), FLAGOS_OK) << "the last bytes";
    ExpectFails(D().memory_alloc(0, 1, &block), FLAGOS_OUT_OF_MEMORY, "memory_alloc");
    ASSERT_EQ(D().memory_unmap(0, base + 2 * kUnit, 3 * kUnit), FLAGOS_OK);
    EXPECT_EQ(FreeBytes(), 3 * kUnit);
    ASSERT_EQ(D().memory_unmap(0, base, kUnit), FLAGOS_OK);
    ASSERT_EQ(D().memory_release(0, base, 64 * kUnit), FLAGOS_OK);
    EXPECT_EQ(Reserve(64 * kUnit), base) << "the addresses are free again";
  });
}

TEST(HostReservation, CopiesAndFillsCrossMappings) {
  for (const char* protect : {"0", "1"}) {
    InQueueModes({{"FLAGOS_HOST_PROTECT", protect}}, [] {
      flagos_stream_t stream = nullptr;
      ASSERT_EQ(D().stream_create(0, 0, 0, &stream), FLAGOS_OK);
      char* base = Reserve(4 * kUnit);
      ASSERT_EQ(D().memory_map(0, base + 2 * kUnit, kUnit), FLAGOS_OK);
      ASSERT_EQ(D().memory_map(0, base + kUnit, kUnit), FLAGOS_OK);
      std::vector<unsigned char> data(kUnit);
      for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>(i * 7 + 1);
      char* middle = base + 2 * kUnit - kUnit / 2;
      ASSERT_EQ(D().copy(middle, 0, data.data(), FLAGOS_HOST, kUnit, stream), FLAGOS_OK);
      std::vector<unsigned char> back(kUnit);
      ASSERT_EQ(D().copy(back.data(), FLAGOS_HOST, middle, 0, kUnit, stream), FLAGOS_OK);
      EXPECT_EQ(back, data);
      ASSERT_EQ(D().fill(base + kUnit, 0, 5, 2 * kUnit, stream), FLAGOS_OK);
      ASSERT_EQ(D().stream_sync(stream), FLAGOS_OK);
      EXPECT_EQ(View(base + kUnit)[0], 5);
      EXPECT_EQ(View(base + kUnit)[2 * kUnit - 1], 5);
      flagos_pointer_info_t info{};
      info.struct_size = sizeof info;
      ASSERT_EQ(D().pointer_info(base + 2 * kUnit + 3, &info), FLAGOS_OK);
      EXPECT_EQ(info.space, FLAGOS_SPACE_DEVICE);
      EXPECT_EQ(info.device, 0);
      EXPECT_EQ(info.base, base + kUnit);
      EXPECT_EQ(info.size, 2 * kUnit);
      ASSERT_EQ(D().pointer_info(base, &info), FLAGOS_OK);
      EXPECT_EQ(info.space, FLAGOS_SPACE_UNKNOWN) << "reserved, not mapped";
      // Beyond what is mapped.
      ExpectFails(D().fill(base + kUnit, 0, 5, 2 * kUnit + 1, stream), FLAGOS_INVALID_VALUE, "fill");
      ExpectFails(D().fill(base + kUnit - 1, 0, 5, 2, stream), FLAGOS_INVALID_VALUE, "fill");
      ExpectFails(D().copy(base, 0, data.data(), FLAGOS_HOST, 1, nullptr), FLAGOS_INVALID_VALUE, "copy");
      ASSERT_EQ(D().memory_unmap(0, base + 2 * kUnit, kUnit), FLAGOS_OK);
      ExpectFails(D().copy(middle, 0, data.data(), FLAGOS_HOST, kUnit, stream), FLAGOS_INVALID_VALUE, "copy");
      EXPECT_EQ(View(base + kUnit)[kUnit - 1], 5) << "the neighbour keeps its bytes";
    });
  }
}

TEST(HostReservation, TwoReservationsAreTwoRanges) {
  InChild({}, [] {
    char* first = Reserve(kUnit);
    char* second = Reserve(kUnit);
    ASSERT_EQ(second, first + kUnit) << "they touch, or this test shows nothing";
    ASSERT_EQ(D().memory_map(0, first, kUnit), FLAGOS_OK);
    ASSERT_EQ(D().memory_map(0, second, kUnit), FLAGOS_OK);
    ExpectFails(D().fill(first, 0, 1, 2 * kUnit, nullptr), FLAGOS_INVALID_VALUE, "fill");
    ExpectFails(D().memory_unmap(0, first, 2 * kUnit), FLAGOS_INVALID_VALUE, "memory_unmap");
    ExpectFails(D().memory_release(0, first, 2 * kUnit), FLAGOS_INVALID_VALUE, "memory_release");
  });
}

TEST(HostReservation, MemoryIsFreshEachTime) {
  InQueueModes({}, [] {
    char* base = Reserve(kUnit);
    for (int round = 0; round < 2; ++round) {
      ASSERT_EQ(D().memory_map(0, base, kUnit), FLAGOS_OK);
      EXPECT_EQ(View(base)[100], 0);
      std::memset(View(base), 9, kUnit);
      ASSERT_EQ(D().memory_unmap(0, base, kUnit), FLAGOS_OK);
    }
  });
  InQueueModes({{"FLAGOS_HOST_POISON", "1"}, {"FLAGOS_HOST_MISALIGN", "1"}}, [] {
    char* base = Reserve(kUnit);
    for (int round = 0; round < 2; ++round) {
      ASSERT_EQ(D().memory_map(0, base, kUnit), FLAGOS_OK);
      EXPECT_EQ(View(base)[100], 0xFF);
      std::memset(View(base), 9, kUnit);
      ASSERT_EQ(D().memory_unmap(0, base, kUnit), FLAGOS_OK);
      EXPECT_EQ(View(base)[100], 0xFD);
    }
  });
}

TEST(HostReservation, Misuse) {
  InQueueModes({{"FLAGOS_HOST_DEVICES", "2"}}, [] {
    void* pointer = nullptr;
    size_t granularity = 0;
    ExpectFails(D().memory_granularity(2, &granularity), FLAGOS_INVALID_DEVICE, "memory_granularity");
    ExpectFails(D().memory_reserve(2, kUnit, &pointer), FLAGOS_INVALID_DEVICE, "memory_reserve");
    ExpectFails(D().memory_reserve(0, kUnit + 4096, &pointer), FLAGOS_INVALID_VALUE, "memory_reserve");
    ExpectFails(D().memory_reserve(0, size_t{1} << 60, &pointer), FLAGOS_OUT_OF_MEMORY, "memory_reserve");
    char* base = Reserve(4 * kUnit);
    char* other = Reserve(4 * kUnit, 1);
    ExpectFails(D().memory_map(0, base + 4096, kUnit), FLAGOS_INVALID_VALUE, "memory_map");
    ExpectFails(D().memory_map(0, base, kUnit / 2), FLAGOS_INVALID_VALUE, "memory_map");
    ExpectFails(D().memory_map(0, base, 5 * kUnit), FLAGOS_INVALID_VALUE, "memory_map");
    ExpectFails(D().memory_map(0, other, kUnit), FLAGOS_INVALID_VALUE, "memory_map");
    ExpectFails(D().memory_unmap(0, base, kUnit), FLAGOS_INVALID_VALUE, "memory_unmap");
    ASSERT_EQ(D().memory_map(0, base, 2 * kUnit), FLAGOS_OK);
    ExpectFails(D().memory_map(0, base + kUnit, kUnit), FLAGOS_INVALID_VALUE, "memory_map");
    ExpectFails(D().memory_map(0, base, 4 * kUnit), FLAGOS_INVALID_VALUE, "memory_map");
    ExpectFails(D().memory_unmap(0, base, kUnit), FLAGOS_INVALID_VALUE, "memory_unmap");          // a part
    ExpectFails(D().memory_unmap(0, base + kUnit, kUnit), FLAGOS_INVALID_VALUE, "memory_unmap");  // a part
    ExpectFails(D().memory_unmap(0, base, 3 * kUnit), FLAGOS_INVALID_VALUE, "memory_unmap");      // and more
    ExpectFails(D().memory_unmap(0, base + 1, kUnit), FLAGOS_INVALID_VALUE, "memory_unmap");
    ExpectFails(D().memory_free(0, base), FLAGOS_INVALID_VALUE, "memory_free");
    ExpectFails(D().memory_release(0, base, 4 * kUnit), FLAGOS_INVALID_VALUE, "memory_release");
    EXPECT_NE(std::string(D().last_error()->vendor_text).find("unmap them first"), std::string::npos);
    ASSERT_EQ(D().memory_unmap(0, base, 2 * kUnit), FLAGOS_OK);
    ExpectFails(D().memory_unmap(0, base, 2 * kUnit), FLAGOS_INVALID_VALUE, "memory_unmap");
    ExpectFails(D().memory_release(0, base, 2 * kUnit), FLAGOS_INVALID_VALUE, "memory_release");
    ExpectFails(D().memory_release(0, base + kUnit, kUnit), FLAGOS_INVALID_VALUE, "memory_release");
    ASSERT_EQ(D().memory_release(0, base, 4 * kUnit), FLAGOS_OK);
    ExpectFails(D().memory_release(0, base, 4 * kUnit), FLAGOS_INVALID_VALUE, "memory_release");
    // Nothing of nothing.
    pointer = base;
    EXPECT_EQ(D().memory_reserve(0, 0, &pointer), FLAGOS_OK);
    EXPECT_EQ(pointer, nullptr);
    EXPECT_EQ(D().memory_map(0, nullptr, 0), FLAGOS_OK);
    EXPECT_EQ(D().memory_unmap(0, nullptr, 0), FLAGOS_OK);
    EXPECT_EQ(D().memory_release(0, nullptr, 0), FLAGOS_OK);
  });
}

TEST(HostReservation, TouchesAreCaught) {
  InChild({{"FLAGOS_HOST_PROTECT", "1"}}, [] {
    char* base = Reserve(2 * kUnit);
    flagos_access_fault_t fault{};
    fault.struct_size = sizeof fault;
    for (int round = 0; round < 2; ++round) {
      ASSERT_EQ(D().memory_map(0, base, kUnit), FLAGOS_OK);
      std::memset(View(base), 9, kUnit);
      EXPECT_EQ(*static_cast<volatile char*>(base + 5000), 9);
      if (round == 0) {
        ASSERT_EQ(D().access_fault_take(&fault), FLAGOS_OK);
        EXPECT_EQ(fault.address, base + 5000);
      }
      ASSERT_EQ(D().memory_unmap(0, base, kUnit), FLAGOS_OK);
    }
    ASSERT_EQ(D().access_fault_take(&fault), FLAGOS_OK);
    EXPECT_EQ(D().access_fault_take(&fault), FLAGOS_NOT_READY);
    // The page that the second fault opened is closed again.
    ASSERT_EQ(D().memory_map(0, base, kUnit), FLAGOS_OK);
    EXPECT_EQ(*static_cast<volatile char*>(base + 5000), 0);
    EXPECT_EQ(D().access_fault_take(&fault), FLAGOS_OK);
  });
}

TEST(HostReservation, UnmapWaitsForPendingWork) {
  InQueueModes({}, [] {
    flagos_stream_t stream = nullptr;
    ASSERT_EQ(D().stream_create(0, 0, 0, &stream), FLAGOS_OK);
    char* base = Reserve(kUnit);
    ASSERT_EQ(D().memory_map(0, base, kUnit), FLAGOS_OK);
    static std::atomic<int> ran{0};
    for (int i = 0; i < 50; ++i) {
      ASSERT_EQ(D().fill(base, 0, static_cast<uint8_t>(i), kUnit, stream), FLAGOS_OK);
      D().stream_host_func(stream, [](void*) { ++ran; }, nullptr);
    }
    ASSERT_EQ(D().memory_unmap(0, base, kUnit), FLAGOS_OK);
    EXPECT_EQ(ran.load(), 50);
  });
}

}  // namespace
}  // namespace torch_fl::test
