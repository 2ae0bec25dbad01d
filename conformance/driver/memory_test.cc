// SPDX-License-Identifier: Apache-2.0
// Device blocks: sizes, alignment, exhaustion, frees that must be refused, who owns an address.
#include <algorithm>
#include <random>
#include <thread>

#include "suite.h"

namespace torch_fl::suite {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

size_t Alignment() { return D().memory_alignment != nullptr ? D().memory_alignment() : 64; }

TEST(Memory, ZeroBytesGiveNull) {
  NEED_DEVICES(1);
  int sentinel = 0;
  void* pointer = &sentinel;
  ASSERT_OK(D().memory_alloc(0, 0, &pointer));
  EXPECT_EQ(pointer, nullptr);
  EXPECT_OK(D().memory_free(0, pointer));
}

TEST(Memory, FreeOfNull) {
  NEED_DEVICES(1);
  EXPECT_OK(D().memory_free(0, nullptr));
}

TEST(Memory, AlignmentIsAPowerOfTwo) {
  NEED_ENTRY(memory_alignment);
  const size_t alignment = D().memory_alignment();
  EXPECT_GE(alignment, 1u);
  EXPECT_EQ(alignment & (alignment - 1), 0u) << alignment;
  EXPECT_EQ(D().memory_alignment(), alignment);
}

TEST(Memory, EveryBlockIsAligned) {
  NEED_DEVICES(1);
  std::vector<std::unique_ptr<Block>> blocks;
  for (const size_t size : {1, 2, 3, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097, 100000}) {
    blocks.push_back(std::make_unique<Block>(0, size));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back()->get()) % Alignment(), 0u) << size << " bytes";
  }
}

TEST(Memory, ABlockHoldsItsBytes) {
  NEED_DEVICES(1);
  for (int device = 0; device < DeviceCount(); ++device) {
    for (const size_t size : {size_t{1}, size_t{7}, size_t{4096}, size_t{70001}, 3 * kMiB + 5}) {
      const Block block(device, size);
      const Bytes data = Pattern(size, size);
      block.Write(data);
      EXPECT_TRUE(Same(data, block.Read())) << size << " bytes on device " << device;
    }
  }
}

TEST(Memory, BigBlock) {
  NEED_DEVICES(1);
  constexpr size_t kSize = 256 * kMiB;
  const Block block(0, kSize);
  block.Write({1, 2, 3}, 0);
  block.Write({4, 5, 6}, kSize / 2);
  block.Write({7, 8, 9}, kSize - 3);
  EXPECT_TRUE(Same({1, 2, 3}, block.Read(0, 3)));
  EXPECT_TRUE(Same({4, 5, 6}, block.Read(kSize / 2, 3)));
  EXPECT_TRUE(Same({7, 8, 9}, block.Read(kSize - 3, 3)));
}

TEST(Memory, LiveBlocksDoNotOverlap) {
  NEED_DEVICES(1);
  std::mt19937 random(7);
  std::vector<std::unique_ptr<Block>> blocks;
  for (int i = 0; i < 300; ++i) {
    blocks.push_back(std::make_unique<Block>(i % DeviceCount(), 1 + random() % 20000));
    if (i % 5 == 4) blocks.erase(blocks.begin() + random() % blocks.size());
  }
  std::sort(blocks.begin(), blocks.end(), [](const auto& a, const auto& b) {
    return std::pair(a->device(), a->get()) < std::pair(b->device(), b->get());
  });
  for (size_t i = 1; i < blocks.size(); ++i) {
    if (blocks[i]->device() != blocks[i - 1]->device()) continue;
    EXPECT_LE(blocks[i - 1]->at(blocks[i - 1]->size()), blocks[i]->get());
  }
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i]->Write(Pattern(blocks[i]->size(), i));
  for (size_t i = 0; i < blocks.size(); ++i) ASSERT_TRUE(Same(Pattern(blocks[i]->size(), i), blocks[i]->Read())) << i;
}

TEST(Memory, UnifiedAddressesDifferBetweenDevices) {
  NEED_DEVICES(2);
  NEED_CAPABILITY(UNIFIED_ADDRESS);
  const Block a(0, kMiB);
  const Block b(1, kMiB);
  EXPECT_TRUE(a.at(kMiB) <= b.get() || b.at(kMiB) <= a.get());
}

TEST(Memory, TooMuchIsOutOfMemory) {
  NEED_DEVICES(1);
  for (const size_t size : {size_t{1} << 50, SIZE_MAX / 2, SIZE_MAX - 4096, SIZE_MAX}) {
    void* pointer = nullptr;
    EXPECT_FAILS(memory_alloc, FLAGOS_OUT_OF_MEMORY, 0, size, &pointer);
    EXPECT_EQ(pointer, nullptr);
  }
}

TEST(Memory, WorksAfterOutOfMemory) {
  NEED_DEVICES(1);
  void* pointer = nullptr;
  EXPECT_FAILS(memory_alloc, FLAGOS_OUT_OF_MEMORY, 0, size_t{1} << 50, &pointer);
  const Block block(0, 4096);
  const Stream stream(0);
  const Bytes data = Pattern(4096, 3);
  CopyIn(block, data.data(), data.size(), stream.get());
  stream.Sync();
  EXPECT_TRUE(Same(data, block.Read()));
}

TEST(Memory, ExhaustAndRecover) {
  NEED_DEVICES(1);
  flagos_device_info_t info{};
  info.struct_size = sizeof info;
  ASSERT_OK(D().device_info(0, &info));
  const size_t size = static_cast<size_t>(info.total_memory / 8);
  std::vector<void*> blocks;
  flagos_status_t status = FLAGOS_OK;
  while (blocks.size() <= 8) {
    void* pointer = nullptr;
    status = D().memory_alloc(0, size, &pointer);
    if (status != FLAGOS_OK) break;
    blocks.push_back(pointer);
  }
  EXPECT_STATUS(FLAGOS_OUT_OF_MEMORY, status);
  EXPECT_GE(blocks.size(), 1u);
  for (void* pointer : blocks) EXPECT_OK(D().memory_free(0, pointer));
  const Block block(0, size);  // all of it came back
  block.Write({42}, size - 1);
  EXPECT_TRUE(Same({42}, block.Read(size - 1, 1)));
}

TEST(Memory, AllocateAndFreeManyTimes) {
  NEED_DEVICES(1);
  for (int i = 0; i < 300; ++i) const Block block(0, kMiB);
}

// ---- Frees that must be refused

TEST(Memory, FreeOfAnInteriorPointer) {
  NEED_DEVICES(1);
  const Block block(0, 4096);
  for (const size_t offset : {1, 64, 4095}) {
    EXPECT_FAILS(memory_free, FLAGOS_INVALID_VALUE, 0, block.at(offset));
  }
  block.Write(Pattern(4096, 1));
  EXPECT_TRUE(Same(Pattern(4096, 1), block.Read())) << "the block lives on";
}

TEST(Memory, FreeTwice) {
  NEED_DEVICES(1);
  Block block(0, 4096);
  void* pointer = block.Release();
  ASSERT_OK(D().memory_free(0, pointer));
  EXPECT_FAILS(memory_free, FLAGOS_INVALID_VALUE, 0, pointer);
}

TEST(Memory, FreeOfPageableMemory) {
  NEED_DEVICES(1);
  Bytes host(64);
  EXPECT_FAILS(memory_free, FLAGOS_INVALID_VALUE, 0, host.data());
}

TEST(Memory, FreeOfPinnedMemory) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_alloc);
  const Pinned pinned(4096);
  EXPECT_FAILS(memory_free, FLAGOS_INVALID_VALUE, 0, pinned.get());
}

TEST(Memory, FreeOnAnotherDevice) {
  NEED_DEVICES(2);
  const Block block(0, 4096);
  EXPECT_FAILS(memory_free, FLAGOS_INVALID_VALUE, 1, block.get());
  block.Write(Pattern(4096, 2));
  EXPECT_TRUE(Same(Pattern(4096, 2), block.Read())) << "the block lives on";
}

TEST(Memory, FreeWithWorkPending) {
  NEED_GATES();
  NEED_ENTRY(host_alloc);
  constexpr size_t kSize = kMiB;
  const Pinned out(kSize);
  const Stream stream(0);
  Block block(0, kSize);
  block.Write(Pattern(kSize, 5));
  Gate gate(stream);
  CopyOut(out.get(), block, kSize, stream.get());
  // Either waits for the gate, so somebody else has to open it, or keeps the bytes.
  std::thread opener([&] { gate.Open(); });
  EXPECT_OK(D().memory_free(0, block.Release()));
  opener.join();
  const Block next(0, kSize);
  next.Write(Bytes(kSize, 0));
  stream.Sync();
  EXPECT_TRUE(Same(Pattern(kSize, 5), out.Read()));
}

// ---- Who owns an address

flagos_pointer_info_t InfoOf(const void* pointer) {
  flagos_pointer_info_t info{};
  info.struct_size = sizeof info;
  Check(D().pointer_info(pointer, &info), "pointer_info");
  return info;
}

TEST(PointerInfo, OfDeviceMemory) {
  NEED_ENTRY(pointer_info);
  NEED_DEVICES(1);
  for (int device = 0; device < DeviceCount(); ++device) {
    const Block block(device, 10000);
    for (const size_t offset : {0, 1, 9999}) {
      const flagos_pointer_info_t info = InfoOf(block.at(offset));
      EXPECT_EQ(info.space, FLAGOS_SPACE_DEVICE);
      EXPECT_EQ(info.device, device);
      if (info.base == nullptr) continue;  // unknown is allowed
      EXPECT_EQ(info.base, block.get());
      EXPECT_TRUE(info.size == 0 || info.size >= block.size()) << info.size;
    }
  }
}

TEST(PointerInfo, OfFreedDeviceMemory) {
  NEED_ENTRY(pointer_info);
  NEED_DEVICES(1);
  Block block(0, 64 * kMiB);
  void* pointer = block.Release();
  ASSERT_OK(D().memory_free(0, pointer));
  EXPECT_EQ(InfoOf(pointer).space, FLAGOS_SPACE_UNKNOWN);
}

TEST(PointerInfo, OfPinnedMemory) {
  NEED_ENTRY(pointer_info);
  NEED_ENTRY(host_alloc);
  NEED_DEVICES(1);
  const Pinned pinned(10000);
  for (const size_t offset : {0, 1, 9999}) {
    const flagos_pointer_info_t info = InfoOf(pinned.get() + offset);
    EXPECT_EQ(info.space, FLAGOS_SPACE_PINNED);
    EXPECT_EQ(info.device, -1);
    if (info.base != nullptr) {
      EXPECT_EQ(info.base, pinned.get());
    }
  }
}

TEST(PointerInfo, OfPageableMemory) {
  NEED_ENTRY(pointer_info);
  NEED_DEVICES(1);
  const Bytes heap(100);
  int stack = 0;
  for (const void* pointer : {static_cast<const void*>(heap.data()), static_cast<const void*>(&stack)}) {
    const flagos_pointer_info_t info = InfoOf(pointer);
    EXPECT_EQ(info.space, FLAGOS_SPACE_UNKNOWN);
    EXPECT_EQ(info.device, -1);
  }
}

TEST(PointerInfo, OfNull) {
  NEED_ENTRY(pointer_info);
  NEED_DEVICES(1);
  EXPECT_EQ(InfoOf(nullptr).space, FLAGOS_SPACE_UNKNOWN);
}

TEST(PointerInfo, WritesNothingBeyondTheCallersStruct) {
  NEED_ENTRY(pointer_info);
  NEED_DEVICES(1);
  const Block block(0, 64);
  constexpr size_t kShort = offsetof(flagos_pointer_info_t, base);
  std::vector<uint8_t> memory(sizeof(flagos_pointer_info_t), 0xA5);
  auto* info = reinterpret_cast<flagos_pointer_info_t*>(memory.data());
  info->struct_size = kShort;
  ASSERT_OK(D().pointer_info(block.get(), info));
  EXPECT_EQ(info->space, FLAGOS_SPACE_DEVICE);
  for (size_t i = kShort; i < memory.size(); ++i) ASSERT_EQ(memory[i], 0xA5) << "byte " << i;
}

// ---- Host view

TEST(HostView, ShowsTheSameBytes) {
  NEED_CAPABILITY(HOST_VIEW);
  NEED_DEVICES(1);
  for (int device = 0; device < DeviceCount(); ++device) {
    const Block block(device, 5000);
    ptrdiff_t offset = 0;
    ASSERT_OK(D().host_view_offset(device, &offset));
    uint8_t* view = block.at(0) + offset;
    const Bytes data = Pattern(5000, 8);
    block.Write(data);
    EXPECT_TRUE(Same(data, Bytes(view, view + 5000)));
    view[17] = static_cast<uint8_t>(data[17] + 1);
    EXPECT_EQ(block.Read()[17], view[17]);
  }
}

TEST(HostView, OffsetIsConstant) {
  NEED_CAPABILITY(HOST_VIEW);
  NEED_DEVICES(1);
  ptrdiff_t before = 0;
  ptrdiff_t after = 1;
  ASSERT_OK(D().host_view_offset(0, &before));
  const Block block(0, 8 * kMiB);
  ASSERT_OK(D().host_view_offset(0, &after));
  EXPECT_EQ(before, after);
}

TEST(AccessFaults, AreReportedOnce) {
  NEED_CAPABILITY(ACCESS_FAULTS);
  NEED_DEVICES(1);
  flagos_access_fault_t fault{};
  fault.struct_size = sizeof fault;
  EXPECT_STATUS(FLAGOS_NOT_READY, D().access_fault_take(&fault));
  const Block block(0, 4096);
  const auto* touched = static_cast<const volatile uint8_t*>(block.at(100));
  [[maybe_unused]] const uint8_t read = *touched;
  ASSERT_OK(D().access_fault_take(&fault));
  EXPECT_EQ(fault.device, 0);
  EXPECT_EQ(fault.address, block.at(100));
  EXPECT_NE(fault.is_write, 1);
  EXPECT_STATUS(FLAGOS_NOT_READY, D().access_fault_take(&fault));
}

}  // namespace
}  // namespace torch_fl::suite
