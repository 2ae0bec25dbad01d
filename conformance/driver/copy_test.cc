// SPDX-License-Identifier: Apache-2.0
// Copies of every kind, size and offset; who may be which side; when a source is read.
#include <algorithm>
#include <cstring>
#include <thread>

#include "suite.h"

namespace torch_fl::suite {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr uint8_t kBorder = 0xB7;

enum class Kind { kIn, kOut, kWithin, kPeer };
enum class Host { kPageable, kPinned };

struct Case {
  Kind kind;
  Host host;
  bool stream;
};

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  static const char* const kinds[] = {"HostToDevice", "DeviceToHost", "WithinADevice", "DeviceToDevice"};
  std::string name = kinds[static_cast<int>(info.param.kind)];
  if (info.param.kind == Kind::kIn || info.param.kind == Kind::kOut) {
    name += info.param.host == Host::kPinned ? "Pinned" : "Pageable";
  }
  return name + (info.param.stream ? "OnAStream" : "Synchronous");
}

class Copies : public testing::TestWithParam<Case> {
 protected:
  // Moves Pattern(size) from one offset to another through the kind under test, and checks every byte of the target, so
  // that a copy that writes too much is seen.
  void Move(size_t size, size_t dst_offset, size_t src_offset) {
    const auto [kind, host, use_stream] = GetParam();
    const int src_device = 0;
    const int dst_device = kind == Kind::kPeer ? 1 : 0;
    const size_t dst_size = dst_offset + size + 37;
    const size_t src_size = src_offset + size;
    Bytes source(src_size);
    const Bytes data = Pattern(size, size * 31 + dst_offset);
    std::copy(data.begin(), data.end(), source.begin() + static_cast<ptrdiff_t>(src_offset));

    const Stream stream(dst_device);
    const flagos_stream_t queue = use_stream ? stream.get() : nullptr;
    std::unique_ptr<Block> src_block;
    std::unique_ptr<Block> dst_block;
    std::unique_ptr<Pinned> pinned;
    Bytes pageable;
    const auto host_memory = [&](const Bytes& bytes) {
      if (host == Host::kPageable) {
        pageable = bytes;
        return pageable.data();
      }
      pinned = std::make_unique<Pinned>(bytes);
      return pinned->get();
    };

    const void* src = nullptr;
    int src_side = src_device;
    if (kind == Kind::kIn) {
      src = host_memory(source) + src_offset;
      src_side = FLAGOS_HOST;
    } else {
      src_block = std::make_unique<Block>(src_device, src_size + 1);
      src_block->Write(source);
      src = src_block->at(src_offset);
    }
    uint8_t* dst = nullptr;
    uint8_t* dst_host = nullptr;
    int dst_side = dst_device;
    const Bytes border(dst_size, kBorder);
    if (kind == Kind::kOut) {
      dst_host = host_memory(border);
      dst = dst_host + dst_offset;
      dst_side = FLAGOS_HOST;
    } else {
      dst_block = std::make_unique<Block>(dst_device, dst_size);
      dst_block->Write(border);
      dst = dst_block->at(dst_offset);
    }
    ASSERT_OK(D().copy(dst, dst_side, src, src_side, size, queue));
    if (use_stream) stream.Sync();
    Bytes wanted = border;
    std::copy(data.begin(), data.end(), wanted.begin() + static_cast<ptrdiff_t>(dst_offset));
    const Bytes got = dst_host != nullptr ? Bytes(dst_host, dst_host + dst_size) : dst_block->Read();
    ASSERT_TRUE(Same(wanted, got)) << size << " bytes, offsets " << dst_offset << " and " << src_offset;
  }
};

#define NEED_COPY_CASE() NEED_DEVICES(GetParam().kind == Kind::kPeer ? 2 : 1)

TEST_P(Copies, EverySize) {
  NEED_COPY_CASE();
  for (const size_t size :
       {size_t{0},     size_t{1},     size_t{2},     size_t{3},   size_t{4},   size_t{7},    size_t{8},    size_t{63},
        size_t{64},    size_t{65},    size_t{511},   size_t{512}, size_t{513}, size_t{4095}, size_t{4096}, size_t{4097},
        size_t{65535}, size_t{65536}, size_t{65537}, kMiB - 1,    kMiB,        kMiB + 3}) {
    Move(size, 0, 0);
  }
}

TEST_P(Copies, EveryOffset) {
  NEED_COPY_CASE();
  for (const size_t dst : {0, 1, 3, 8, 63, 4095}) {
    for (const size_t src : {0, 1, 2, 7, 64, 4097}) Move(1000, dst, src);
  }
}

TEST_P(Copies, Large) {
  NEED_COPY_CASE();
  Move(8 * kMiB + 13, 5, 11);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Copies,
    testing::Values(Case{Kind::kIn, Host::kPageable, false}, Case{Kind::kIn, Host::kPageable, true},
                    Case{Kind::kIn, Host::kPinned, false}, Case{Kind::kIn, Host::kPinned, true},
                    Case{Kind::kOut, Host::kPageable, false}, Case{Kind::kOut, Host::kPageable, true},
                    Case{Kind::kOut, Host::kPinned, false}, Case{Kind::kOut, Host::kPinned, true},
                    Case{Kind::kWithin, Host::kPageable, false}, Case{Kind::kWithin, Host::kPageable, true},
                    Case{Kind::kPeer, Host::kPageable, false}, Case{Kind::kPeer, Host::kPageable, true}),
    CaseName);

// ---- When a source is read

TEST(CopyTiming, APageableSourceIsReadBeforeTheCallReturns) {
  NEED_DEVICES(1);
  for (const size_t size : {size_t{100}, size_t{100000}, 4 * kMiB}) {
    const Bytes data = Pattern(size, 1);
    Bytes source = data;
    const Block block(0, size);
    const Stream stream(0);
    CopyIn(block, source.data(), size, stream.get());
    std::fill(source.begin(), source.end(), uint8_t{0});
    stream.Sync();
    EXPECT_TRUE(Same(data, block.Read())) << size << " bytes";
  }
}

TEST(CopyTiming, APageableSourceIsReadThoughTheStreamIsHeld) {
  NEED_GATES();
  constexpr size_t kSize = 70000;  // above what drivers put into a command
  const Bytes data = Pattern(kSize, 2);
  auto source = std::make_unique<Bytes>(data);
  const Block block(0, kSize);
  const Stream stream(0);
  Gate gate(stream);
  // A driver that cannot stage waits for the stream here, so the gate has to open by itself.
  std::thread opener([&] { gate.Open(); });
  CopyIn(block, source->data(), kSize, stream.get());
  std::fill(source->begin(), source->end(), uint8_t{0});
  source.reset();
  opener.join();
  stream.Sync();
  EXPECT_TRUE(Same(data, block.Read()));
}

TEST(CopyTiming, APinnedSourceIsReadAtExecution) {
  NEED_GATES();
  NEED_ENTRY(host_alloc);
  constexpr size_t kSize = 70000;
  const Pinned source(Bytes(kSize, 1));
  const Block block(0, kSize);
  const Stream stream(0);
  Gate gate(stream);
  CopyIn(block, source.get(), kSize, stream.get());
  EXPECT_STATUS(FLAGOS_NOT_READY, D().stream_query(stream.get()));
  const Bytes later = Pattern(kSize, 3);
  std::memcpy(source.get(), later.data(), kSize);
  gate.Open();
  stream.Sync();
  EXPECT_TRUE(Same(later, block.Read()));
}

TEST(CopyTiming, APinnedTargetIsWrittenAtExecution) {
  NEED_GATES();
  NEED_ENTRY(host_alloc);
  constexpr size_t kSize = 70000;
  const Block block(0, kSize);
  block.Write(Pattern(kSize, 4));
  const Pinned target(Bytes(kSize, 9));
  const Stream stream(0);
  Gate gate(stream);
  CopyOut(target.get(), block, kSize, stream.get());
  EXPECT_TRUE(Same(Bytes(kSize, 9), target.Read())) << "the stream is held";
  gate.Open();
  stream.Sync();
  EXPECT_TRUE(Same(Pattern(kSize, 4), target.Read()));
}

TEST(CopyTiming, ADeviceCopyRunsInStreamOrder) {
  NEED_GATES();
  constexpr size_t kSize = 10000;
  const Block a(0, kSize);
  const Block b(0, kSize);
  a.Write(Bytes(kSize, 1));
  b.Write(Bytes(kSize, 2));
  const Stream stream(0);
  {
    const Gate gate(stream);
    CopyBlock(b, a, kSize, stream.get());
    ASSERT_OK(D().fill(a.get(), 0, 3, kSize, stream.get()));
    EXPECT_STATUS(FLAGOS_NOT_READY, D().stream_query(stream.get()));
  }
  stream.Sync();
  EXPECT_TRUE(Same(Bytes(kSize, 3), a.Read()));
  EXPECT_TRUE(Same(Bytes(kSize, 1), b.Read()));
}

TEST(CopyTiming, ACallWithoutAStreamComesAfterQueuedWork) {
  NEED_GATES();
  const Block block(0, 1000);
  block.Write(Bytes(1000, 1));
  const Stream stream(0);
  Gate gate(stream);
  ASSERT_OK(D().fill(block.get(), 0, 2, 1000, stream.get()));
  std::thread opener([&] { gate.Open(); });
  const Bytes read = block.Read();
  opener.join();
  EXPECT_TRUE(Same(Bytes(1000, 2), read));
}

TEST(CopyTiming, ACallWithoutAStreamIsCompleteForOtherStreams) {
  NEED_DEVICES(1);
  const Block a(0, 1000);
  const Block b(0, 1000);
  const Stream stream(0);
  for (int round = 0; round < 50; ++round) {
    const auto value = static_cast<uint8_t>(round);
    ASSERT_OK(D().fill(a.get(), 0, value, 1000, nullptr));
    CopyBlock(b, a, 1000, stream.get());
    stream.Sync();
    ASSERT_TRUE(Same(Bytes(1000, value), b.Read()));
  }
}

TEST(CopyTiming, PeerCopyOnEitherSidesStream) {
  NEED_DEVICES(2);
  constexpr size_t kSize = 30000;
  for (const int queue : {0, 1}) {
    const Block a(0, kSize);
    const Block b(1, kSize);
    a.Write(Pattern(kSize, 5));
    const Stream stream(queue);
    CopyBlock(b, a, kSize, stream.get());
    stream.Sync();
    EXPECT_TRUE(Same(Pattern(kSize, 5), b.Read())) << "stream of device " << queue;
  }
}

// ---- What must be refused

class BadCopy : public testing::Test {
 protected:
  void SetUp() override {
    if (DeviceCount() > 0) block = std::make_unique<Block>(0, 4096);
  }
  std::unique_ptr<Block> block;
  Bytes host = Bytes(8192);
};

TEST_F(BadCopy, BothSidesAreTheHost) {
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, host.data(), FLAGOS_HOST, host.data() + 100, FLAGOS_HOST, 10, nullptr);
}

TEST_F(BadCopy, PastTheEndOfTheTarget) {
  NEED_DEVICES(1);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, block->at(0), 0, host.data(), FLAGOS_HOST, 4097, nullptr);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, block->at(4000), 0, host.data(), FLAGOS_HOST, 97, nullptr);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, block->at(1), 0, host.data(), FLAGOS_HOST, SIZE_MAX, nullptr);
}

TEST_F(BadCopy, PastTheEndOfTheSource) {
  NEED_DEVICES(1);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, host.data(), FLAGOS_HOST, block->at(0), 0, 4097, nullptr);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, host.data(), FLAGOS_HOST, block->at(4095), 0, 2, nullptr);
}

TEST_F(BadCopy, PastTheEndOnAStream) {
  NEED_DEVICES(1);
  const Stream stream(0);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, block->at(0), 0, host.data(), FLAGOS_HOST, 4097, stream.get());
  EXPECT_OK(D().stream_sync(stream.get()));
}

TEST_F(BadCopy, AHostPointerOnTheDeviceSide) {
  NEED_DEVICES(1);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, host.data(), 0, host.data() + 4096, FLAGOS_HOST, 64, nullptr);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, host.data(), FLAGOS_HOST, host.data() + 4096, 0, 64, nullptr);
}

TEST_F(BadCopy, APinnedPointerOnTheDeviceSide) {
  NEED_DEVICES(1);
  NEED_ENTRY(host_alloc);
  const Pinned pinned(64);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, pinned.get(), 0, host.data(), FLAGOS_HOST, 64, nullptr);
}

TEST_F(BadCopy, ADevicePointerOnTheHostSide) {
  NEED_DEVICES(1);
  const Block other(0, 4096);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, block->get(), 0, other.get(), FLAGOS_HOST, 64, nullptr);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, block->get(), FLAGOS_HOST, other.get(), 0, 64, nullptr);
}

TEST_F(BadCopy, AnotherDevicesPointer) {
  NEED_DEVICES(2);
  const Block other(1, 4096);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, other.get(), 0, host.data(), FLAGOS_HOST, 64, nullptr);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, host.data(), FLAGOS_HOST, other.get(), 0, 64, nullptr);
}

TEST_F(BadCopy, NullPointers) {
  NEED_DEVICES(1);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, nullptr, 0, host.data(), FLAGOS_HOST, 64, nullptr);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, block->get(), 0, nullptr, FLAGOS_HOST, 64, nullptr);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, nullptr, FLAGOS_HOST, block->get(), 0, 64, nullptr);
}

TEST_F(BadCopy, AFreedBlock) {
  NEED_DEVICES(1);
  void* freed = block->Release();
  ASSERT_OK(D().memory_free(0, freed));
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, freed, 0, host.data(), FLAGOS_HOST, 64, nullptr);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, host.data(), FLAGOS_HOST, freed, 0, 64, nullptr);
}

TEST_F(BadCopy, OverlappingRanges) {
  NEED_DEVICES(1);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, block->at(0), 0, block->at(100), 0, 101, nullptr);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, block->at(100), 0, block->at(0), 0, 101, nullptr);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, block->at(0), 0, block->at(0), 0, 1, nullptr);
}

TEST_F(BadCopy, RangesThatTouchAreFine) {
  NEED_DEVICES(1);
  block->Write(Pattern(2048, 1));
  EXPECT_OK(D().copy(block->at(2048), 0, block->at(0), 0, 2048, nullptr));
  EXPECT_TRUE(Same(Pattern(2048, 1), block->Read(2048, 2048)));
}

TEST_F(BadCopy, AStreamOfAThirdDevice) {
  NEED_DEVICES(2);
  const Stream stream(1);
  EXPECT_FAILS_EITHER(copy, FLAGOS_INVALID_VALUE, FLAGOS_INVALID_HANDLE, block->get(), 0, host.data(), FLAGOS_HOST, 64,
                      stream.get());
}

TEST_F(BadCopy, ARefusedCopyMovesNothing) {
  NEED_DEVICES(1);
  block->Write(Pattern(4096, 6));
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, block->at(0), 0, host.data(), FLAGOS_HOST, 4097, nullptr);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, block->at(0), 0, host.data(), 0, 64, nullptr);
  EXPECT_TRUE(Same(Pattern(4096, 6), block->Read()));
}

TEST_F(BadCopy, ZeroBytesDoNothing) {
  NEED_DEVICES(1);
  EXPECT_OK(D().copy(nullptr, 0, nullptr, FLAGOS_HOST, 0, nullptr));
  EXPECT_OK(D().copy(nullptr, FLAGOS_HOST, nullptr, 0, 0, nullptr));
  EXPECT_OK(D().copy(block->get(), 0, host.data(), FLAGOS_HOST, 0, nullptr));
}

// ---- Fills

TEST(Fills, EverySize) {
  NEED_DEVICES(1);
  for (int device = 0; device < DeviceCount(); ++device) {
    for (const size_t size :
         {size_t{0}, size_t{1}, size_t{3}, size_t{511}, size_t{512}, size_t{513}, size_t{4097}, kMiB + 3}) {
      const Block block(device, size + 20);
      block.Write(Bytes(size + 20, 0x11));
      ASSERT_OK(D().fill(block.at(7), device, 0xC3, size, nullptr));
      Bytes wanted(size + 20, 0x11);
      std::fill_n(wanted.begin() + 7, size, uint8_t{0xC3});
      ASSERT_TRUE(Same(wanted, block.Read())) << size << " bytes on device " << device;
    }
  }
}

TEST(Fills, EveryValue) {
  NEED_DEVICES(1);
  const Block block(0, 100);
  for (int value = 0; value < 256; ++value) {
    ASSERT_OK(D().fill(block.get(), 0, static_cast<uint8_t>(value), 100, nullptr));
    ASSERT_TRUE(Same(Bytes(100, static_cast<uint8_t>(value)), block.Read()));
  }
}

TEST(Fills, OnAStreamInOrder) {
  NEED_DEVICES(1);
  const Block block(0, 100000);
  const Stream stream(0);
  for (int value = 0; value < 50; ++value) {
    ASSERT_OK(D().fill(block.get(), 0, static_cast<uint8_t>(value), block.size(), stream.get()));
  }
  ASSERT_OK(D().fill(block.at(500), 0, 99, 1000, stream.get()));
  stream.Sync();
  Bytes wanted(block.size(), 49);
  std::fill_n(wanted.begin() + 500, 1000, uint8_t{99});
  EXPECT_TRUE(Same(wanted, block.Read()));
}

TEST(Fills, StayPendingBehindAGate) {
  NEED_GATES();
  const Block block(0, 1000);
  block.Write(Bytes(1000, 1));
  const Stream stream(0);
  Gate gate(stream);
  ASSERT_OK(D().fill(block.get(), 0, 2, 1000, stream.get()));
  EXPECT_STATUS(FLAGOS_NOT_READY, D().stream_query(stream.get()));
  gate.Open();
  stream.Sync();
  EXPECT_TRUE(Same(Bytes(1000, 2), block.Read()));
}

TEST(Fills, AreRefused) {
  NEED_DEVICES(1);
  const Block block(0, 4096);
  Bytes host(64);
  EXPECT_FAILS(fill, FLAGOS_INVALID_VALUE, block.get(), 0, 0, 4097, nullptr);
  EXPECT_FAILS(fill, FLAGOS_INVALID_VALUE, block.at(4090), 0, 0, 7, nullptr);
  EXPECT_FAILS(fill, FLAGOS_INVALID_VALUE, host.data(), 0, 0, 64, nullptr);
  EXPECT_FAILS(fill, FLAGOS_INVALID_VALUE, nullptr, 0, 0, 64, nullptr);
  EXPECT_FAILS(fill, FLAGOS_INVALID_DEVICE, host.data(), FLAGOS_HOST, 0, 64, nullptr);
  EXPECT_OK(D().fill(nullptr, 0, 0, 0, nullptr));
}

TEST(Fills, OnAStreamOfAnotherDevice) {
  NEED_DEVICES(2);
  const Block block(0, 64);
  const Stream stream(1);
  EXPECT_FAILS_EITHER(fill, FLAGOS_INVALID_VALUE, FLAGOS_INVALID_HANDLE, block.get(), 0, 0, 64, stream.get());
}

}  // namespace
}  // namespace torch_fl::suite
