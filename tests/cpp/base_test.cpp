// SPDX-License-Identifier: Apache-2.0
#include "base/options.h"
#include "child.h"

namespace torch_fl::test {
namespace {

TEST(Options, FlagTruthTable) {
  for (const char* word : {"1", "true", "on", "yes", "TRUE", "Yes"}) EXPECT_TRUE(ParseFlag("X", word)) << word;
  for (const char* word : {"0", "false", "off", "no", "OFF"}) EXPECT_FALSE(ParseFlag("X", word)) << word;
  for (const char* word : {"2", "", "y", "truee", " 1"}) {
    const std::string text = ErrorOf([&] { ParseFlag("FLAGOS_X", word); }, FLAGOS_INVALID_VALUE);
    EXPECT_EQ(text, "FLAGOS_X=" + std::string(word) + " is not understood; use 1, true, on, yes or 0, false, off, no");
  }
}

TEST(Options, Bytes) {
  EXPECT_EQ(ParseBytes("X", "0"), 0u);
  EXPECT_EQ(ParseBytes("X", "512"), 512u);
  EXPECT_EQ(ParseBytes("X", "3k"), 3072u);
  EXPECT_EQ(ParseBytes("X", "2M"), 2u << 20);
  EXPECT_EQ(ParseBytes("X", "5G"), uint64_t{5} << 30);
  EXPECT_EQ(ParseBytes("X", "1T"), uint64_t{1} << 40);
  for (const char* word : {"", "K", "-1", "1.5G", "1GB", "1 G", "99999999999999999999", "99999999999T", "0x10"}) {
    const std::string text = ErrorOf([&] { ParseBytes("FLAGOS_X", word); }, FLAGOS_INVALID_VALUE);
    EXPECT_EQ(text.rfind("FLAGOS_X=" + std::string(word) + " is not understood; use a number of bytes", 0), 0u) << text;
  }
}

TEST(Options, Environment) {
  InChild({{"FLAGOS_A", ""}, {"FLAGOS_B", "yes"}, {"FLAGOS_C", "blue"}, {"FLAGOS_D", "4K"}}, [] {
    EXPECT_FALSE(EnvString("FLAGOS_A").has_value());
    EXPECT_TRUE(EnvFlag("FLAGOS_A", true));
    EXPECT_TRUE(EnvFlag("FLAGOS_B", false));
    EXPECT_EQ(EnvBytes("FLAGOS_D", 7), 4096u);
    EXPECT_EQ(EnvBytes("FLAGOS_UNSET", 7), 7u);
    EXPECT_EQ(EnvChoice("FLAGOS_C", {"red", "blue"}, "red"), "blue");
    EXPECT_EQ(ErrorOf([] { EnvChoice("FLAGOS_C", {"red", "green"}, "red"); }, FLAGOS_INVALID_VALUE),
              "FLAGOS_C=blue is not understood; use one of: red, green");
  });
}

TEST(Options, FormatBytes) {
  EXPECT_EQ(FormatBytes(20u << 20), "20.00 MiB");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(7), "7 bytes");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 29), "1.50 GiB");
}

TEST(Status, Names) {
  EXPECT_EQ(StatusName(FLAGOS_OUT_OF_MEMORY), "OUT_OF_MEMORY");
  EXPECT_EQ(StatusName(static_cast<flagos_status_t>(99)), "status 99");
}

}  // namespace
}  // namespace torch_fl::test
