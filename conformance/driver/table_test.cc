// SPDX-License-Identifier: Apache-2.0
// The table itself, its life cycle and last_error.
#include <dlfcn.h>

#include <cstring>
#include <thread>

#include "suite.h"

namespace torch_fl::suite {
namespace {

// The library's own table, not completed and without layers. The handle is never closed: drivers have threads.
const flagos_driver_v1_t* RawTable(uint32_t abi_version, flagos_status_t* out_status) {
  void* library = dlopen(DriverPath().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(FLAGOS_LIBRARY_MISSING, dlerror());
  const auto entry = reinterpret_cast<flagos_driver_entry_t>(dlsym(library, FLAGOS_DRIVER_ENTRY_SYMBOL));
  if (entry == nullptr) throw Error(FLAGOS_SYMBOL_MISSING, FLAGOS_DRIVER_ENTRY_SYMBOL);
  const flagos_driver_v1_t* table = nullptr;
  *out_status = entry(abi_version, &table);
  return table;
}

TEST(Table, VersionAndSize) {
  flagos_status_t status = FLAGOS_OK;
  const flagos_driver_v1_t* table = RawTable(FLAGOS_DRIVER_ABI_VERSION, &status);
  ASSERT_EQ(status, FLAGOS_OK);
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->abi_version, FLAGOS_DRIVER_ABI_VERSION);
  EXPECT_GE(table->struct_size, FLAGOS_DRIVER_V1_MIN_SIZE);
  EXPECT_LE(table->struct_size, 4096u) << "struct_size is not the size of a table";
}

TEST(Table, Names) {
  ASSERT_NE(D().platform, nullptr);
  EXPECT_GT(std::strlen(D().platform), 0u);
  EXPECT_EQ(std::strspn(D().platform, "abcdefghijklmnopqrstuvwxyz0123456789_"), std::strlen(D().platform));
  ASSERT_NE(D().implementation, nullptr);
  EXPECT_GT(std::strlen(D().implementation), 0u);
}

TEST(Table, RequiredEntries) {
#define REQUIRE(entry) EXPECT_NE(D().entry, nullptr) << #entry " is required"
  REQUIRE(init);
  REQUIRE(capabilities);
  REQUIRE(device_count);
  REQUIRE(device_info);
  REQUIRE(device_sync);
  REQUIRE(memory_alloc);
  REQUIRE(memory_free);
  REQUIRE(copy);
  REQUIRE(fill);
  REQUIRE(stream_create);
  REQUIRE(stream_destroy);
  REQUIRE(stream_query);
  REQUIRE(stream_sync);
  REQUIRE(stream_wait);
  REQUIRE(event_create);
  REQUIRE(event_destroy);
  REQUIRE(event_record);
  REQUIRE(event_query);
  REQUIRE(event_sync);
  REQUIRE(last_error);
#undef REQUIRE
}

TEST(Table, PairsAndGroupsAreWhole) {
  EXPECT_EQ(D().host_alloc == nullptr, D().host_free == nullptr);
  EXPECT_EQ(D().host_register == nullptr, D().host_unregister == nullptr);
  EXPECT_EQ(D().peer_can_access == nullptr, D().peer_enable == nullptr);
  EXPECT_EQ(D().kernel_begin == nullptr, D().kernel_end == nullptr);
  const bool group = D().memory_granularity != nullptr;
  EXPECT_EQ(group, D().memory_reserve != nullptr);
  EXPECT_EQ(group, D().memory_release != nullptr);
  EXPECT_EQ(group, D().memory_map != nullptr);
  EXPECT_EQ(group, D().memory_unmap != nullptr);
}

TEST(Table, CapabilitiesHaveTheirEntries) {
  if (Has(FLAGOS_CAP_HOST_VIEW)) {
    EXPECT_NE(D().host_view_offset, nullptr);
  }
  if (Has(FLAGOS_CAP_ACCESS_FAULTS)) {
    EXPECT_NE(D().access_fault_take, nullptr);
  }
  if (Has(FLAGOS_CAP_EVENT_TIMING)) {
    EXPECT_NE(D().event_elapsed, nullptr);
  }
  if (Has(FLAGOS_CAP_STREAM_PRIORITY)) {
    EXPECT_NE(D().stream_priority_range, nullptr);
  }
  if (Has(FLAGOS_CAP_KERNEL_ORDER)) {
    EXPECT_TRUE(Has(FLAGOS_CAP_HOST_VIEW));
    EXPECT_NE(D().kernel_begin, nullptr);
    EXPECT_NE(D().kernel_end, nullptr);
  }
}

TEST(Table, CapabilitiesAreConstant) {
  const uint64_t before = D().capabilities();
  if (DeviceCount() > 0) {
    const Block block(0, 64);
    const Stream stream(0);
    EXPECT_EQ(D().capabilities(), before);
  }
  uint64_t elsewhere = ~before;
  std::thread([&] { elsewhere = D().capabilities(); }).join();
  EXPECT_EQ(elsewhere, before);
}

TEST(Table, EntryCalledTwiceGivesTheSameTable) {
  flagos_status_t first = FLAGOS_OK;
  flagos_status_t second = FLAGOS_OK;
  const flagos_driver_v1_t* table = RawTable(FLAGOS_DRIVER_ABI_VERSION, &first);
  EXPECT_EQ(table, RawTable(FLAGOS_DRIVER_ABI_VERSION, &second));
  EXPECT_EQ(first, FLAGOS_OK);
  EXPECT_EQ(second, FLAGOS_OK);
}

TEST(Table, EntryServesANewerCaller) {
  flagos_status_t status = FLAGOS_OK;
  EXPECT_NE(RawTable(FLAGOS_DRIVER_ABI_VERSION + 1, &status), nullptr);
  EXPECT_EQ(status, FLAGOS_OK) << "the number is the newest that the caller knows, not the only one";
}

TEST(Table, EntryRefusesAnOlderCaller) {
  flagos_status_t status = FLAGOS_OK;
  RawTable(FLAGOS_DRIVER_ABI_VERSION - 1, &status);
  EXPECT_EQ(status, FLAGOS_UNSUPPORTED);
}

TEST(Table, SecondInitIsAlready) { EXPECT_STATUS(FLAGOS_ALREADY, D().init(nullptr, 0)); }

TEST(Table, Versions) {
  NEED_ENTRY(versions);
  int64_t driver = -1;
  int64_t runtime = -1;
  EXPECT_OK(D().versions(&driver, &runtime));
  EXPECT_GE(driver, 0);
  EXPECT_GE(runtime, 0);
}

// ---- last_error

TEST(LastError, IsFreshInANewThread) {
  EXPECT_FAILS(device_sync, FLAGOS_INVALID_DEVICE, -5);
  bool checked = false;
  std::thread([&] {
    const flagos_error_t* error = D().last_error();
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->status, FLAGOS_OK);
    ASSERT_NE(error->function, nullptr);
    ASSERT_NE(error->vendor_text, nullptr);
    checked = true;
  }).join();
  EXPECT_TRUE(checked);
}

TEST(LastError, SaysWhatFailed) {
  EXPECT_FAILS(device_sync, FLAGOS_INVALID_DEVICE, -5);
  const flagos_error_t* error = D().last_error();
  EXPECT_GE(error->struct_size, sizeof(flagos_error_t));
  EXPECT_STREQ(error->function, "device_sync");
  EXPECT_EQ(error->device, -5);
  EXPECT_NE(error->vendor_text[0], 0);
}

TEST(LastError, OfAnotherThreadIsNotSeen) {
  EXPECT_FAILS(device_sync, FLAGOS_INVALID_DEVICE, -5);
  std::thread([] { EXPECT_FAILS(stream_query, FLAGOS_INVALID_HANDLE, nullptr); }).join();
  EXPECT_EQ(D().last_error()->status, FLAGOS_INVALID_DEVICE);
  EXPECT_STREQ(D().last_error()->function, "device_sync");
}

TEST(LastError, NotReadyIsNoError) {
  NEED_GATES();
  const Stream stream(0);
  const Event event(0);
  EXPECT_FAILS(device_sync, FLAGOS_INVALID_DEVICE, -5);
  const Gate gate(stream);
  event.Record(stream);
  EXPECT_STATUS(FLAGOS_NOT_READY, D().stream_query(stream.get()));
  EXPECT_STATUS(FLAGOS_NOT_READY, D().event_query(event.get()));
  EXPECT_NE(D().last_error()->status, FLAGOS_NOT_READY);
  EXPECT_EQ(D().last_error()->status, FLAGOS_INVALID_DEVICE);
}

TEST(LastError, ManyThreadsKeepTheirOwn) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([i] {
      for (int round = 0; round < 200; ++round) {
        const int32_t device = -2 - i;
        D().device_sync(device);
        ASSERT_EQ(D().last_error()->device, device);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace torch_fl::suite
