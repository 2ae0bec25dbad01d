// SPDX-License-Identifier: Apache-2.0
// Address space apart from memory: reserve, map, unmap, release.
#include <thread>

#include "suite.h"

namespace torch_fl::suite {
namespace {

#define NEED_ADDRESS_SPACE() \
  NEED_DEVICES(1);           \
  NEED_ENTRY(memory_granularity)

size_t Granularity(int device = 0) {
  size_t bytes = 0;
  Check(D().memory_granularity(device, &bytes), "memory_granularity");
  return bytes;
}

// A reservation with mappings of one granule each.
class Reservation {
 public:
  explicit Reservation(size_t granules, int device = 0)
      : device_(device), granule_(Granularity(device)), mapped_(granules) {
    Check(D().memory_reserve(device, granules * granule_, &pointer_), "memory_reserve");
  }
  ~Reservation() {
    for (size_t i = 0; i < mapped_.size(); ++i) {
      if (mapped_[i]) Unmap(i);
    }
    EXPECT_OK(D().memory_release(device_, pointer_, mapped_.size() * granule_));
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  uint8_t* at(size_t offset) const { return static_cast<uint8_t*>(pointer_) + offset; }
  size_t granule() const { return granule_; }
  void Map(size_t index) {
    Check(D().memory_map(device_, at(index * granule_), granule_), "memory_map");
    mapped_[index] = true;
  }
  void Unmap(size_t index) {
    EXPECT_OK(D().memory_unmap(device_, at(index * granule_), granule_));
    mapped_[index] = false;
  }
  void Write(size_t offset, const Bytes& bytes) const {
    Check(D().copy(at(offset), device_, bytes.data(), FLAGOS_HOST, bytes.size(), nullptr), "copy");
  }
  Bytes Read(size_t offset, size_t size) const {
    Bytes bytes(size);
    Check(D().copy(bytes.data(), FLAGOS_HOST, at(offset), device_, size, nullptr), "copy");
    return bytes;
  }

 private:
  int device_;
  size_t granule_;
  std::vector<bool> mapped_;
  void* pointer_ = nullptr;
};

TEST(AddressSpace, GranularityIsAPowerOfTwo) {
  NEED_ADDRESS_SPACE();
  const size_t bytes = Granularity();
  EXPECT_GT(bytes, 0u);
  EXPECT_EQ(bytes & (bytes - 1), 0u);
}

TEST(AddressSpace, ReserveTakesNoMemory) {
  NEED_ADDRESS_SPACE();
  NEED_ENTRY(device_memory);
  uint64_t before = 0;
  uint64_t during = 0;
  uint64_t total = 0;
  ASSERT_OK(D().device_memory(0, &before, &total));
  const Reservation reservation(16);
  ASSERT_OK(D().device_memory(0, &during, &total));
  EXPECT_LE(before - during, Granularity()) << "addresses are not memory";
}

TEST(AddressSpace, ReservationsAreAlignedAndApart) {
  NEED_ADDRESS_SPACE();
  const Reservation a(4);
  const Reservation b(4);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.at(0)) % a.granule(), 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.at(0)) % b.granule(), 0u);
  EXPECT_TRUE(a.at(4 * a.granule()) <= b.at(0) || b.at(4 * b.granule()) <= a.at(0));
}

TEST(AddressSpace, AMappedPartHoldsBytes) {
  NEED_ADDRESS_SPACE();
  for (int device = 0; device < DeviceCount(); ++device) {
    Reservation reservation(4, device);
    reservation.Map(1);
    const Bytes data = Pattern(5000, 1);
    reservation.Write(reservation.granule() + 3, data);
    EXPECT_TRUE(Same(data, reservation.Read(reservation.granule() + 3, 5000)));
  }
}

TEST(AddressSpace, CopiesAndFillsCrossBordersOfMappings) {
  NEED_ADDRESS_SPACE();
  Reservation reservation(3);
  reservation.Map(0);
  reservation.Map(2);
  reservation.Map(1);
  const size_t granule = reservation.granule();
  const Bytes data = Pattern(granule + 200, 2);
  reservation.Write(granule - 100, data);
  EXPECT_TRUE(Same(data, reservation.Read(granule - 100, data.size())));
  const Stream stream(0);
  ASSERT_OK(D().fill(reservation.at(granule - 50), 0, 7, 100, stream.get()));
  stream.Sync();
  EXPECT_TRUE(Same(Bytes(100, 7), reservation.Read(granule - 50, 100)));
}

TEST(AddressSpace, GrowingKeepsWhatIsThere) {
  NEED_ADDRESS_SPACE();
  Reservation reservation(4);
  for (size_t i = 0; i < 4; ++i) {
    reservation.Map(i);
    reservation.Write(i * reservation.granule(), Pattern(1000, i));
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(Same(Pattern(1000, i), reservation.Read(i * reservation.granule(), 1000))) << i;
  }
}

TEST(AddressSpace, UnmapAndMapAgain) {
  NEED_ADDRESS_SPACE();
  Reservation reservation(2);
  for (int round = 0; round < 10; ++round) {
    reservation.Map(0);
    reservation.Write(0, Pattern(100, round));
    EXPECT_TRUE(Same(Pattern(100, round), reservation.Read(0, 100)));
    reservation.Unmap(0);
  }
}

TEST(AddressSpace, UnmappedPartsAreRefused) {
  NEED_ADDRESS_SPACE();
  Reservation reservation(2);
  Bytes bytes(64);
  EXPECT_FAILS(copy, FLAGOS_INVALID_VALUE, bytes.data(), FLAGOS_HOST, reservation.at(0), 0, 64, nullptr);
  EXPECT_FAILS(fill, FLAGOS_INVALID_VALUE, reservation.at(0), 0, 0, 64, nullptr);
  reservation.Map(0);
  const size_t granule = reservation.granule();
  EXPECT_FAILS(fill, FLAGOS_INVALID_VALUE, reservation.at(granule - 32), 0, 0, 64, nullptr);
}

TEST(AddressSpace, MapTwiceIsRefused) {
  NEED_ADDRESS_SPACE();
  Reservation reservation(2);
  reservation.Map(0);
  EXPECT_FAILS_EITHER(memory_map, FLAGOS_INVALID_VALUE, FLAGOS_ALREADY, 0, reservation.at(0), reservation.granule());
}

TEST(AddressSpace, MapOutsideAReservationIsRefused) {
  NEED_ADDRESS_SPACE();
  const Reservation reservation(1);
  EXPECT_FAILS(memory_map, FLAGOS_INVALID_VALUE, 0, reservation.at(0), 2 * reservation.granule());
  EXPECT_FAILS(memory_map, FLAGOS_INVALID_VALUE, 0, nullptr, reservation.granule());
}

TEST(AddressSpace, UnmapOfWhatIsNotMappedIsRefused) {
  NEED_ADDRESS_SPACE();
  const Reservation reservation(2);
  EXPECT_FAILS(memory_unmap, FLAGOS_INVALID_VALUE, 0, reservation.at(0), reservation.granule());
}

TEST(AddressSpace, ReleaseWithMappingsIsRefused) {
  NEED_ADDRESS_SPACE();
  Reservation reservation(2);
  reservation.Map(1);
  EXPECT_FAILS(memory_release, FLAGOS_INVALID_VALUE, 0, reservation.at(0), 2 * reservation.granule());
  reservation.Write(reservation.granule(), {1, 2, 3});
  EXPECT_TRUE(Same({1, 2, 3}, reservation.Read(reservation.granule(), 3)));
}

TEST(AddressSpace, SizesAreMultiplesOfTheGranularity) {
  NEED_ADDRESS_SPACE();
  void* pointer = nullptr;
  EXPECT_FAILS(memory_reserve, FLAGOS_INVALID_VALUE, 0, Granularity() + 1, &pointer);
  Reservation reservation(2);
  EXPECT_FAILS(memory_map, FLAGOS_INVALID_VALUE, 0, reservation.at(1), reservation.granule());
  EXPECT_FAILS(memory_map, FLAGOS_INVALID_VALUE, 0, reservation.at(0), reservation.granule() - 1);
}

TEST(AddressSpace, TooMuchMemoryIsOutOfMemory) {
  NEED_ADDRESS_SPACE();
  flagos_device_info_t info{};
  info.struct_size = sizeof info;
  ASSERT_OK(D().device_info(0, &info));
  const size_t granule = Granularity();
  // More than there is, in addresses; mapping it whole must fail and leave nothing behind.
  const size_t size = (static_cast<size_t>(info.total_memory) / granule + 1) * granule;
  void* pointer = nullptr;
  ASSERT_OK(D().memory_reserve(0, size, &pointer));
  EXPECT_FAILS(memory_map, FLAGOS_OUT_OF_MEMORY, 0, pointer, size);
  EXPECT_OK(D().memory_map(0, pointer, granule));
  EXPECT_OK(D().memory_unmap(0, pointer, granule));
  EXPECT_OK(D().memory_release(0, pointer, size));
}

TEST(AddressSpace, PointerInfoKnowsAMappedPart) {
  NEED_ADDRESS_SPACE();
  NEED_ENTRY(pointer_info);
  Reservation reservation(2);
  reservation.Map(0);
  flagos_pointer_info_t info{};
  info.struct_size = sizeof info;
  ASSERT_OK(D().pointer_info(reservation.at(10), &info));
  EXPECT_EQ(info.space, FLAGOS_SPACE_DEVICE);
  EXPECT_EQ(info.device, 0);
}

TEST(AddressSpace, UnmapWaitsForWork) {
  NEED_ADDRESS_SPACE();
  NEED_GATES();
  NEED_ENTRY(host_alloc);
  Reservation reservation(1);
  reservation.Map(0);
  reservation.Write(0, Pattern(4096, 9));
  const Pinned out(4096);
  const Stream stream(0);
  Gate gate(stream);
  ASSERT_OK(D().copy(out.get(), FLAGOS_HOST, reservation.at(0), 0, 4096, stream.get()));
  std::thread opener([&] { gate.Open(); });
  reservation.Unmap(0);
  opener.join();
  stream.Sync();
  EXPECT_TRUE(Same(Pattern(4096, 9), out.Read()));
}

TEST(AddressSpace, ZeroBytesDoNothing) {
  NEED_ADDRESS_SPACE();
  Reservation reservation(1);
  EXPECT_OK(D().memory_map(0, reservation.at(0), 0));
  EXPECT_OK(D().memory_unmap(0, reservation.at(0), 0));
}

}  // namespace
}  // namespace torch_fl::suite
