// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "child.h"

namespace torch_fl::test {
namespace {

const std::string kFixtures = TEST_FIXTURES;

std::string Fixture(const std::string& name) { return kFixtures + "/libtorch_fl_driver_" + name + ".so"; }

// First use throws `line` (and again the same at the second use); there is no device and the reason is that text.
void ExpectRefused(const Environment& environment, flagos_status_t status, const std::string& line) {
  InChild(environment, [&] {
    const std::string first = ErrorOf([] { runtime::Driver(); }, status);
    EXPECT_EQ(FirstLine(first), line);
    EXPECT_EQ(ErrorOf([] { runtime::Driver(); }, status), first);
    EXPECT_EQ(runtime::DeviceCount(), 0);
    EXPECT_EQ(runtime::UnavailableReason(), first);
    EXPECT_FALSE(runtime::HardwareDetected());
  });
}

std::string Plugin(const std::string& name) { return "FLAGOS_DRIVER_PLUGIN=" + Fixture(name) + ": "; }

TEST(Loader, UnknownDriver) {
  ExpectRefused({{"FLAGOS_DRIVER", "nosuch"}}, FLAGOS_LIBRARY_MISSING,
                "FLAGOS_DRIVER=nosuch: no such driver; available: cuda, host, null (in " TEST_DRIVERS ")");
  ExpectRefused({{"FLAGOS_DRIVER", "../host"}}, FLAGOS_LIBRARY_MISSING,
                "FLAGOS_DRIVER=../host: no such driver; available: cuda, host, null (in " TEST_DRIVERS ")");
}

TEST(Loader, EmptyFolder) {
  ExpectRefused({{"FLAGOS_DRIVER_PATH", "/nonexistent"}}, FLAGOS_LIBRARY_MISSING,
                "default driver host: no such driver; available: none (in /nonexistent)");
}

TEST(Loader, PluginThatDoesNotExist) {
  ExpectRefused(
      {{"FLAGOS_DRIVER_PLUGIN", "/nonexistent/mine.so"}}, FLAGOS_LIBRARY_MISSING,
      "FLAGOS_DRIVER_PLUGIN=/nonexistent/mine.so: no such file: /nonexistent/mine.so; give the path of a driver "
      "library");
}

TEST(Loader, PluginThatIsNoLibrary) {
  const std::string path = testing::TempDir() + "/torch_fl_not_a_library.so";
  std::ofstream(path) << "text";
  InChild({{"FLAGOS_DRIVER_PLUGIN", path}}, [&] {
    const std::string text = ErrorOf([] { runtime::Driver(); }, FLAGOS_LIBRARY_MISSING);
    EXPECT_EQ(text.rfind("FLAGOS_DRIVER_PLUGIN=" + path + ": cannot open " + path + ": ", 0), 0u) << text;
  });
  std::filesystem::remove(path);
}

TEST(Loader, MissingSymbol) {
  ExpectRefused({{"FLAGOS_DRIVER_PLUGIN", Fixture("no_symbol")}}, FLAGOS_SYMBOL_MISSING,
                Plugin("no_symbol") +
                    "the library does not export flagos_driver_entry_v1; it is not a torch_fl driver, or "
                    "it hides that symbol");
}

TEST(Loader, WrongAbi) {
  ExpectRefused({{"FLAGOS_DRIVER_PLUGIN", Fixture("wrong_abi")}}, FLAGOS_UNSUPPORTED,
                Plugin("wrong_abi") +
                    "the driver has abi_version 7, torch_fl needs 1; rebuild the driver against the "
                    "driver.h of this torch_fl");
}

TEST(Loader, TruncatedTable) {
  ExpectRefused({{"FLAGOS_DRIVER_PLUGIN", Fixture("truncated")}}, FLAGOS_INVALID_VALUE,
                Plugin("truncated") + "the driver table is truncated: struct_size is 96 bytes, at least " +
                    std::to_string(FLAGOS_DRIVER_V1_MIN_SIZE) +
                    " are needed; rebuild the driver against the driver.h of this torch_fl");
}

TEST(Loader, EntryRefuses) {
  ExpectRefused(
      {{"FLAGOS_DRIVER_PLUGIN", Fixture("refuses")}}, FLAGOS_UNSUPPORTED,
      Plugin("refuses") + "flagos_driver_entry_v1(1) returned UNSUPPORTED; use a driver built for this torch_fl");
}

TEST(Loader, MissingRequiredEntry) {
  ExpectRefused({{"FLAGOS_DRIVER_PLUGIN", Fixture("no_copy")}}, FLAGOS_INVALID_VALUE,
                Plugin("no_copy") + "the driver table lacks required entries: copy; fill them in");
}

TEST(Loader, CapabilityWithoutItsEntry) {
  ExpectRefused({{"FLAGOS_DRIVER_PLUGIN", Fixture("no_offset")}}, FLAGOS_INVALID_VALUE,
                Plugin("no_offset") +
                    "the driver claims FLAGOS_CAP_HOST_VIEW but its table lacks host_view_offset; fill it "
                    "in or drop the bit");
}

TEST(Loader, InitFailsWithTheVendorsWords) {
  ExpectRefused({{"FLAGOS_DRIVER_PLUGIN", Fixture("bad_init")}}, FLAGOS_LIBRARY_MISSING,
                Plugin("bad_init") + "init failed with LIBRARY_MISSING: libfixture.so: not there (vendor code 42)");
}

TEST(Loader, OptionsReachTheDriver) {
  ExpectRefused(
      {{"FLAGOS_DRIVER", "host"}, {"FLAGOS_HOST_COLOUR", "red"}}, FLAGOS_INVALID_VALUE,
      "FLAGOS_DRIVER=host: init failed with INVALID_VALUE: unknown option colour=red; known: devices (0..64), "
      "memory (bytes, suffix K, M, G or T), protect, poison, misalign (0 or 1), queue (eager or lazy) "
      "[FLAGOS_HOST_COLOUR=red]");
  for (const auto& [name, value] : Environment{{"FLAGOS_HOST_DEVICES", "65"},
                                               {"FLAGOS_HOST_DEVICES", "two"},
                                               {"FLAGOS_HOST_MEMORY", "1GB"},
                                               {"FLAGOS_HOST_MEMORY", "0"},
                                               {"FLAGOS_HOST_PROTECT", "maybe"},
                                               {"FLAGOS_HOST_QUEUE", "sideways"}}) {
    InChild({{name, value}}, [name = name, value = value] {
      const std::string text = ErrorOf([] { runtime::Driver(); }, FLAGOS_INVALID_VALUE);
      EXPECT_NE(text.find("=" + value + " is not understood; use "), std::string::npos) << text;
      EXPECT_NE(text.find("[" + name + "=" + value + "]"), std::string::npos) << text;
    });
  }
  InChild({{"FLAGOS_HOST_QUEUE", "eager"}, {"FLAGOS_HOST_DEVICES", ""}},
          [] { EXPECT_EQ(runtime::DeviceCount(), 1) << "an empty variable counts as unset"; });
}

TEST(Loader, UnknownLayer) {
  ExpectRefused(
      {{"FLAGOS_DRIVER_LAYERS", "validate,speed"}}, FLAGOS_INVALID_VALUE,
      "FLAGOS_DRIVER_LAYERS=validate,speed: unknown layer 'speed'; known: validate, trace, leak, fault, delay");
}

TEST(Loader, Layers) {
  InChild({{"FLAGOS_DRIVER_LAYERS", "validate,leak"}}, [] {
    EXPECT_EQ(runtime::GetDriverInfo().layers, (std::vector<std::string>{"validate", "leak"}));
    EXPECT_EQ(runtime::GetDriverInfo().platform, "host");
    EXPECT_NE(runtime::GetDriverInfo().capabilities & FLAGOS_CAP_KERNEL_ORDER, 0u);
  });
  InChild({{"FLAGOS_DRIVER_LAYERS", ""}}, [] { EXPECT_TRUE(runtime::GetDriverInfo().layers.empty()); });
}

TEST(Loader, DefaultIsHost) {
  InChild({}, [] {
    EXPECT_EQ(runtime::GetDriverInfo().name, "host");
    EXPECT_EQ(runtime::GetDriverInfo().platform, "host");
    EXPECT_EQ(runtime::GetDriverInfo().path, TEST_DRIVERS "/libtorch_fl_driver_host.so");
    EXPECT_EQ(runtime::DeviceCount(), 1);
    EXPECT_EQ(runtime::UnavailableReason(), "");
    EXPECT_FALSE(runtime::HardwareDetected());
    EXPECT_EQ(runtime::AvailableDrivers(), (std::vector<std::string>{"cuda", "host", "null"}));
    EXPECT_FALSE(runtime::HasContext(0)) << "queries create no context";
    EXPECT_GT(runtime::DeviceInfo(0).total_memory, 0u);
    EXPECT_FALSE(runtime::HasContext(0));
  });
}

TEST(Loader, NoDevice) {
  const auto check = [](const std::string& reason) {
    EXPECT_EQ(runtime::DeviceCount(), 0);
    EXPECT_EQ(runtime::UnavailableReason(), reason);
    EXPECT_EQ(ErrorOf([] { runtime::Allocate(0, 8); }, FLAGOS_NO_DEVICE),
              "allocate: no flagos device is available: " + reason);
    EXPECT_EQ(ErrorOf([] { runtime::SetDevice(0); }, FLAGOS_NO_DEVICE),
              "set_device: no flagos device is available: " + reason);
  };
  InChild({{"FLAGOS_HOST_DEVICES", "0"}},
          [&] { check("driver host reports no device; it was given FLAGOS_HOST_DEVICES=0"); });
  InChild({{"FLAGOS_DRIVER", "null"}}, [&] { check("driver null reports no device"); });
}

TEST(Loader, HardwareDriversComeFirst) {
  // A folder with the host driver and one that is neither host nor null and reports devices.
  const std::string folder = testing::TempDir() + "/torch_fl_drivers";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  std::filesystem::create_symlink(TEST_DRIVERS "/libtorch_fl_driver_host.so", folder + "/libtorch_fl_driver_host.so");
  std::filesystem::create_symlink(Fixture("wrong_abi"), folder + "/libtorch_fl_driver_aaa.so");
  std::filesystem::create_symlink(Fixture("minimal"), folder + "/libtorch_fl_driver_minimal.so");
  InChild({{"FLAGOS_DRIVER_PATH", folder}}, [&] {
    EXPECT_TRUE(runtime::HardwareDetected());
    EXPECT_EQ(runtime::GetDriverInfo().name, "minimal");
    EXPECT_EQ(runtime::DeviceCount(), 2);
    const auto& missing = runtime::GetDriverInfo().missing_entries;
    EXPECT_NE(std::find(missing.begin(), missing.end(), "peer_can_access"), missing.end());
  });
  InChild({{"FLAGOS_DRIVER_PATH", folder}, {"FLAGOS_DRIVER", "host"}},
          [&] { EXPECT_EQ(runtime::GetDriverInfo().name, "host"); });
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace torch_fl::test
