// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory: made by the driver, or somebody else's that is registered.
#include <cstdlib>
#include <cstring>

#include "suite.h"

namespace torch_fl::suite {
namespace {

constexpr size_t kPage = 4096;

// Page-aligned memory of the test's own, as host_register wants it.
struct Pages {
  explicit Pages(size_t bytes) : size(bytes), pointer(static_cast<uint8_t*>(std::aligned_alloc(kPage, bytes))) {
    if (pointer == nullptr) throw std::bad_alloc();
    std::memset(pointer, 0, bytes);
  }
  ~Pages() { std::free(pointer); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  const size_t size;
  uint8_t* const pointer;
};

TEST(HostAlloc, ZeroBytesGiveNull) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_alloc);
  int sentinel = 0;
  void* pointer = &sentinel;
  ASSERT_OK(D().host_alloc(0, &pointer));
  EXPECT_EQ(pointer, nullptr);
  EXPECT_OK(D().host_free(nullptr));
}

TEST(HostAlloc, IsOrdinaryMemoryToTheHost) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_alloc);
  const Pinned pinned(Pattern(100000, 1));
  EXPECT_TRUE(Same(Pattern(100000, 1), pinned.Read()));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pinned.get()) % 64, 0u);
}

TEST(HostAlloc, TooMuchIsOutOfMemory) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_alloc);
  void* pointer = nullptr;
  EXPECT_FAILS(host_alloc, FLAGOS_OUT_OF_MEMORY, size_t{1} << 60, &pointer);
  EXPECT_EQ(pointer, nullptr);
  const Pinned after(64);
}

TEST(HostAlloc, FreeOfWhatItNeverMade) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_free);
  Bytes pageable(64);
  EXPECT_FAILS(host_free, FLAGOS_INVALID_VALUE, pageable.data());
  const Block block(0, 64);
  EXPECT_FAILS(host_free, FLAGOS_INVALID_VALUE, block.get());
}

TEST(HostAlloc, FreeOfAnInteriorPointer) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_free);
  const Pinned pinned(4096);
  EXPECT_FAILS(host_free, FLAGOS_INVALID_VALUE, pinned.get() + 64);
}

TEST(HostAlloc, FreeTwice) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_free);
  void* pointer = nullptr;
  ASSERT_OK(D().host_alloc(4096, &pointer));
  ASSERT_OK(D().host_free(pointer));
  EXPECT_FAILS(host_free, FLAGOS_INVALID_VALUE, pointer);
}

TEST(HostAlloc, CopiesBothWays) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_alloc);
  constexpr size_t kSize = 300000;
  for (int device = 0; device < DeviceCount(); ++device) {
    const Pinned in(Pattern(kSize, 3));
    const Pinned out(kSize);
    const Block block(device, kSize);
    const Stream stream(device);
    CopyIn(block, in.get(), kSize, stream.get());
    CopyOut(out.get(), block, kSize, stream.get());
    stream.Sync();
    EXPECT_TRUE(Same(in.Read(), out.Read())) << "device " << device;
  }
}

// ---- Registered memory

TEST(Registered, CopiesBothWays) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_register);
  const Pages in(16 * kPage);
  const Pages out(16 * kPage);
  const Bytes data = Pattern(in.size, 4);
  std::memcpy(in.pointer, data.data(), in.size);
  ASSERT_OK(D().host_register(in.pointer, in.size));
  ASSERT_OK(D().host_register(out.pointer, out.size));
  {
    const Block block(0, in.size);
    const Stream stream(0);
    CopyIn(block, in.pointer, in.size, stream.get());
    CopyOut(out.pointer, block, out.size, stream.get());
    stream.Sync();
  }
  EXPECT_OK(D().host_unregister(in.pointer));
  EXPECT_OK(D().host_unregister(out.pointer));
  EXPECT_TRUE(Same(data, Bytes(out.pointer, out.pointer + out.size)));
}

TEST(Registered, PointerInfoSaysPinned) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_register);
  NEED_ENTRY(pointer_info);
  const Pages pages(4 * kPage);
  flagos_pointer_info_t info{};
  info.struct_size = sizeof info;
  ASSERT_OK(D().host_register(pages.pointer, pages.size));
  ASSERT_OK(D().pointer_info(pages.pointer + 5000, &info));
  EXPECT_EQ(info.space, FLAGOS_SPACE_PINNED);
  ASSERT_OK(D().host_unregister(pages.pointer));
  ASSERT_OK(D().pointer_info(pages.pointer + 5000, &info));
  EXPECT_EQ(info.space, FLAGOS_SPACE_UNKNOWN);
}

TEST(Registered, TwiceIsAlready) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_register);
  const Pages pages(4 * kPage);
  ASSERT_OK(D().host_register(pages.pointer, pages.size));
  EXPECT_FAILS(host_register, FLAGOS_ALREADY, pages.pointer, pages.size);
  EXPECT_OK(D().host_unregister(pages.pointer));
  ASSERT_OK(D().host_register(pages.pointer, pages.size)) << "it can be registered again";
  EXPECT_OK(D().host_unregister(pages.pointer));
}

TEST(Registered, UnregisterOfWhatIsNot) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_unregister);
  const Pages pages(kPage);
  EXPECT_FAILS(host_unregister, FLAGOS_INVALID_VALUE, pages.pointer);
  ASSERT_OK(D().host_register(pages.pointer, pages.size));
  EXPECT_OK(D().host_unregister(pages.pointer));
  EXPECT_FAILS(host_unregister, FLAGOS_INVALID_VALUE, pages.pointer);
}

TEST(Registered, NullIsRefused) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_register);
  EXPECT_FAILS(host_register, FLAGOS_INVALID_VALUE, nullptr, kPage);
}

TEST(Registered, DeviceMemoryIsRefused) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_register);
  const Block block(0, 4 * kPage);
  EXPECT_FAILS(host_register, FLAGOS_INVALID_VALUE, block.get(), block.size());
}

TEST(Registered, PinnedMemoryIsAlready) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_register);
  NEED_ENTRY(host_alloc);
  const Pinned pinned(4 * kPage);
  EXPECT_FAILS_EITHER(host_register, FLAGOS_ALREADY, FLAGOS_INVALID_VALUE, pinned.get(), pinned.size());
}

TEST(Registered, ZeroBytesDoNothing) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_register);
  const Pages pages(kPage);
  EXPECT_OK(D().host_register(pages.pointer, 0));
  EXPECT_FAILS(host_unregister, FLAGOS_INVALID_VALUE, pages.pointer);
}

}  // namespace
}  // namespace torch_fl::suite
