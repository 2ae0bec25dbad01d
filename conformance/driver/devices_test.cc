// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <limits>

#include "suite.h"

namespace torch_fl::suite {
namespace {

TEST(Devices, CountIsNotNegativeAndConstant) {
  int32_t first = -1;
  ASSERT_OK(D().device_count(&first));
  EXPECT_GE(first, 0);
  int32_t second = -1;
  ASSERT_OK(D().device_count(&second));
  EXPECT_EQ(first, second);
}

TEST(Devices, Info) {
  NEED_DEVICES(1);
  for (int device = 0; device < DeviceCount(); ++device) {
    flagos_device_info_t info;
    std::memset(&info, 0xA5, sizeof info);
    info.struct_size = sizeof info;
    ASSERT_OK(D().device_info(device, &info));
    EXPECT_EQ(info.struct_size, sizeof info);
    constexpr uint32_t kNeeded = FLAGOS_INFO_NAME | FLAGOS_INFO_TOTAL_MEMORY;
    EXPECT_EQ(info.valid & kNeeded, kNeeded) << "name and memory are what every device knows";
    EXPECT_NE(std::memchr(info.name, 0, sizeof info.name), nullptr);
    EXPECT_GT(std::strlen(info.name), 0u);
    EXPECT_GT(info.total_memory, 0u);
    if ((info.valid & FLAGOS_INFO_ARCH) != 0) {
      EXPECT_NE(std::memchr(info.arch, 0, sizeof info.arch), nullptr);
    }
    if ((info.valid & FLAGOS_INFO_PCI) != 0) {
      EXPECT_NE(std::memchr(info.pci, 0, sizeof info.pci), nullptr);
    }
    if ((info.valid & FLAGOS_INFO_COMPUTE_UNITS) != 0) {
      EXPECT_GT(info.compute_units, 0);
    }
    if ((info.valid & FLAGOS_INFO_WARP_SIZE) != 0) {
      EXPECT_GT(info.warp_size, 0);
    }
  }
}

TEST(Devices, InfoWritesNothingBeyondTheCallersStruct) {
  NEED_DEVICES(1);
  for (const size_t size : {offsetof(flagos_device_info_t, name), offsetof(flagos_device_info_t, total_memory),
                            offsetof(flagos_device_info_t, warp_size)}) {
    std::vector<uint8_t> memory(sizeof(flagos_device_info_t), 0xA5);
    auto* info = reinterpret_cast<flagos_device_info_t*>(memory.data());
    info->struct_size = static_cast<uint32_t>(size);
    ASSERT_OK(D().device_info(0, info));
    for (size_t i = size; i < memory.size(); ++i) ASSERT_EQ(memory[i], 0xA5) << "byte " << i << " of " << size;
  }
}

TEST(Devices, InfoFitsALongerStruct) {
  NEED_DEVICES(1);
  struct {
    flagos_device_info_t info;
    uint8_t future[64];
  } longer;
  std::memset(&longer, 0xA5, sizeof longer);
  longer.info.struct_size = sizeof longer;
  ASSERT_OK(D().device_info(0, &longer.info));
  for (const uint8_t byte : longer.future) ASSERT_EQ(byte, 0xA5) << "a driver must not write what it does not know";
}

TEST(Devices, Memory) {
  NEED_DEVICES(1);
  NEED_ENTRY(device_memory);
  for (int device = 0; device < DeviceCount(); ++device) {
    uint64_t free = 0;
    uint64_t total = 0;
    ASSERT_OK(D().device_memory(device, &free, &total));
    EXPECT_GT(total, 0u);
    EXPECT_LE(free, total);
  }
}

TEST(Devices, MemoryFollowsAllocations) {
  NEED_DEVICES(1);
  NEED_ENTRY(device_memory);
  constexpr size_t kSize = size_t{64} << 20;
  uint64_t before = 0;
  uint64_t total = 0;
  ASSERT_OK(D().device_memory(0, &before, &total));
  uint64_t during = 0;
  {
    const Block block(0, kSize);
    ASSERT_OK(D().device_memory(0, &during, &total));
  }
  uint64_t after = 0;
  ASSERT_OK(D().device_memory(0, &after, &total));
  EXPECT_LE(during + kSize / 2, before) << "64 MiB were taken";
  EXPECT_GE(after, during + kSize / 2) << "64 MiB were given back";
}

TEST(Devices, SyncOfAnIdleDevice) {
  NEED_DEVICES(1);
  for (int device = 0; device < DeviceCount(); ++device) EXPECT_OK(D().device_sync(device));
}

TEST(Devices, SyncCoversAllStreams) {
  NEED_GATES();
  constexpr size_t kSize = 4096;
  const Block a(0, kSize);
  const Block b(0, kSize);
  const Stream first(0);
  const Stream second(0);
  {
    const Gate one(first);
    const Gate two(second);
    Check(D().fill(a.get(), 0, 1, kSize, first.get()), "fill");
    Check(D().fill(b.get(), 0, 2, kSize, second.get()), "fill");
    EXPECT_STATUS(FLAGOS_NOT_READY, D().stream_query(first.get()));
    EXPECT_STATUS(FLAGOS_NOT_READY, D().stream_query(second.get()));
  }
  ASSERT_OK(D().device_sync(0));
  EXPECT_OK(D().stream_query(first.get()));
  EXPECT_OK(D().stream_query(second.get()));
  EXPECT_TRUE(Same(Bytes(kSize, 1), a.Read()));
  EXPECT_TRUE(Same(Bytes(kSize, 2), b.Read()));
}

TEST(Devices, SyncDoesNotWaitForAnotherDevice) {
  NEED_GATES();
  NEED_DEVICES(2);
  const Stream other(1);
  const Gate gate(other);
  EXPECT_OK(D().device_sync(0));  // a hang is seen by the watchdog
  EXPECT_STATUS(FLAGOS_NOT_READY, D().stream_query(other.get()));
}

// Every entry that takes a device, with indices that no machine has.
class BadDevice : public testing::TestWithParam<int32_t> {
 protected:
  // Relative to the count, because that differs from machine to machine.
  static int32_t Index() { return GetParam() >= 0 && GetParam() < 1000 ? DeviceCount() + GetParam() : GetParam(); }
};

TEST_P(BadDevice, IsRefusedByEveryEntry) {
  const int32_t bad = Index();
  void* pointer = nullptr;
  int32_t number = 0;
  size_t size = 0;
  uint64_t bytes = 0;
  ptrdiff_t offset = 0;
  char host[16] = {};
  flagos_device_info_t info{};
  info.struct_size = sizeof info;
  flagos_stream_t stream = nullptr;
  flagos_event_t event = nullptr;
  constexpr flagos_status_t kBad = FLAGOS_INVALID_DEVICE;
  EXPECT_FAILS(device_info, kBad, bad, &info);
  EXPECT_FAILS(device_sync, kBad, bad);
  EXPECT_FAILS(memory_alloc, kBad, bad, 64, &pointer);
  EXPECT_FAILS(memory_free, kBad, bad, host);
  EXPECT_FAILS(fill, kBad, host, bad, 0, sizeof host, nullptr);
  EXPECT_FAILS(stream_create, kBad, bad, FLAGOS_STREAM_DEFAULT, 0, &stream);
  EXPECT_FAILS(event_create, kBad, bad, FLAGOS_EVENT_DEFAULT, &event);
  if (bad != FLAGOS_HOST) {
    EXPECT_FAILS(copy, kBad, host, bad, host + 8, FLAGOS_HOST, 8, nullptr);
    EXPECT_FAILS(copy, kBad, host, FLAGOS_HOST, host + 8, bad, 8, nullptr);
  }
  if (D().device_memory != nullptr) {
    EXPECT_FAILS(device_memory, kBad, bad, &bytes, &bytes);
  }
  if (D().host_view_offset != nullptr) {
    EXPECT_FAILS(host_view_offset, kBad, bad, &offset);
  }
  if (D().stream_priority_range != nullptr) {
    EXPECT_FAILS(stream_priority_range, kBad, bad, &number, &number);
  }
  if (D().stream_wrap != nullptr) {
    EXPECT_FAILS(stream_wrap, kBad, bad, host, &stream);
  }
  if (D().peer_can_access != nullptr) {
    EXPECT_FAILS(peer_can_access, kBad, bad, 0, &number);
    EXPECT_FAILS(peer_enable, kBad, bad, 0);
    if (DeviceCount() > 0) {
      EXPECT_FAILS(peer_can_access, kBad, 0, bad, &number);
      EXPECT_FAILS(peer_enable, kBad, 0, bad);
    }
  }
  if (D().memory_granularity != nullptr) {
    EXPECT_FAILS(memory_granularity, kBad, bad, &size);
    EXPECT_FAILS(memory_reserve, kBad, bad, size_t{1} << 21, &pointer);
    EXPECT_FAILS(memory_release, kBad, bad, host, size_t{1} << 21);
    EXPECT_FAILS(memory_map, kBad, bad, host, size_t{1} << 21);
    EXPECT_FAILS(memory_unmap, kBad, bad, host, size_t{1} << 21);
  }
  EXPECT_EQ(pointer, nullptr) << "out parameters are written on FLAGOS_OK only";
  EXPECT_EQ(stream, nullptr);
  EXPECT_EQ(event, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Devices, BadDevice,
                         testing::Values(-1, -2, std::numeric_limits<int32_t>::min(), 0, 1, 998,
                                         std::numeric_limits<int32_t>::max()));

// ---- Peers

TEST(Peers, CanAccess) {
  NEED_DEVICES(2);
  NEED_ENTRY(peer_can_access);
  int32_t can = -1;
  ASSERT_OK(D().peer_can_access(0, 1, &can));
  EXPECT_TRUE(can == 0 || can == 1);
}

TEST(Peers, EnableTwiceIsAlready) {
  NEED_DEVICES(2);
  NEED_ENTRY(peer_can_access);
  int32_t can = 0;
  ASSERT_OK(D().peer_can_access(0, 1, &can));
  if (can == 0) GTEST_SKIP() << "unsupported: device 0 cannot reach device 1";
  const flagos_status_t first = D().peer_enable(0, 1);
  EXPECT_TRUE(first == FLAGOS_OK || first == FLAGOS_ALREADY) << Describe(first);
  EXPECT_FAILS(peer_enable, FLAGOS_ALREADY, 0, 1);
}

TEST(Peers, CopyNeedsNoEnable) {
  NEED_DEVICES(2);
  constexpr size_t kSize = 10000;
  const Bytes data = Pattern(kSize, 1);
  const Block a(0, kSize);
  const Block b(1, kSize);
  a.Write(data);
  CopyBlock(b, a, kSize, nullptr);
  EXPECT_TRUE(Same(data, b.Read()));
}

}  // namespace
}  // namespace torch_fl::suite
