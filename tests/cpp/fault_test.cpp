// SPDX-License-Identifier: Apache-2.0
// Host accesses to protected device memory, alone and with other SIGSEGV handlers.
#include <signal.h>
#include <string.h>

#include <thread>

#include "child.h"

namespace torch_fl::test {
namespace {

const Environment kProtected{{"FLAGOS_HOST_PROTECT", "1"}};

// Out of line: the compiler would see through a bad address.
[[gnu::noinline]] unsigned char Touch(void* pointer) { return *static_cast<volatile unsigned char*>(pointer); }
[[gnu::noinline]] void Store(void* pointer) { *static_cast<volatile unsigned char*>(pointer) = 1; }

std::string Report() {
  return ErrorOf([] { runtime::CheckAttention("test_call"); }, FLAGOS_INVALID_VALUE);
}

void ExpectLivesThroughAFault() {
  char* block = static_cast<char*>(runtime::Allocate(0, 9000, "test::op"));
  memset(View(block), 77, 9000);
  runtime::CheckAttention("test_call");
  EXPECT_EQ(Touch(block + 5000), 77) << "the access sees the bytes";
  const std::string text = Report();
  runtime::AllocationInfo info;
  ASSERT_TRUE(runtime::FindAllocation(block, &info));
  const std::string expected = "host access to device memory: allocation #" + std::to_string(info.number) +
                               ", 9000 bytes, allocated by test::op (";
  EXPECT_EQ(text.substr(0, expected.size()), expected);
  EXPECT_NE(text.find("noticed by test_call"), std::string::npos);
  runtime::CheckAttention("test_call");
  runtime::Free(block);
}

// By the signal, or by a sanitizer's handler, which exits.
bool Died(int status) { return WIFSIGNALED(status) || (status != 0 && WEXITSTATUS(status) != kExpectationFailed); }

void NullDereference() {
  static void* volatile address = nullptr;  // unknown to the compiler
  Touch(static_cast<char*>(address) + 8);
}

// A handler as Python's faulthandler installs it: it prints, restores what was there before and raises again.
struct sigaction g_before;
int g_dumps = 0;
void DumpAndRaise(int signal) {
  ++g_dumps;
  sigaction(SIGSEGV, &g_before, nullptr);
  raise(signal);
}
void InstallDumper() {
  static char stack[65536];
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  ASSERT_EQ(sigaltstack(&alternate, nullptr), 0);
  struct sigaction action = {};
  action.sa_handler = DumpAndRaise;
  action.sa_flags = SA_NODEFER | SA_ONSTACK;
  ASSERT_EQ(sigaction(SIGSEGV, &action, &g_before), 0);
}

TEST(Fault, IsReportedOnceWithItsAllocation) {
  InChild(kProtected, [] {
    EXPECT_NE(runtime::GetDriverInfo().capabilities & FLAGOS_CAP_ACCESS_FAULTS, 0u);
    ExpectLivesThroughAFault();
    ExpectLivesThroughAFault();
  });
}

TEST(Fault, EveryAccessAfterAReportIsFound) {
  InChild(kProtected, [] {
    char* block = static_cast<char*>(runtime::Allocate(0, 64));
    for (int i = 0; i < 3; ++i) {
      Touch(block);
      EXPECT_NE(Report().find("allocated by an unnamed call (read at"), std::string::npos);
    }
    Store(block);
    EXPECT_NE(Report().find("(write at"), std::string::npos);
    EXPECT_EQ(View(block)[0], 1);
  });
}

TEST(Fault, AfterFree) {
  InChild(kProtected, [] {
    void* block = runtime::Allocate(0, 64, "test::gone");
    runtime::Free(block);
    Touch(block);
    EXPECT_NE(Report().find("64 bytes, allocated by test::gone, already freed"), std::string::npos);
  });
}

TEST(Fault, MoreThanTheRingHolds) {
  InChild(kProtected, [] {
    char* block = static_cast<char*>(runtime::Allocate(0, 400 * 4096));
    for (int page = 0; page < 400; ++page) Touch(block + page * 4096);
    int reports = 0;
    for (;;) {
      try {
        runtime::CheckAttention("test_call");
        break;
      } catch (const Error&) {
        ++reports;
      }
    }
    EXPECT_EQ(reports, 256);
    Touch(block);
    Report();
  });
}

TEST(Fault, FromManyThreads) {
  InChild(kProtected, [] {
    char* block = static_cast<char*>(runtime::Allocate(0, 64 * 4096));
    memset(View(block), 5, 64 * 4096);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([=] {
        for (int page = 0; page < 64; ++page) EXPECT_EQ(Touch(block + page * 4096), 5);
      });
    }
    for (auto& thread : threads) thread.join();
    Report();
  });
}

TEST(Fault, ForeignFaultsStillKill) {
  EXPECT_TRUE(Died(RunChild(kProtected, [] {
    runtime::Allocate(0, 64);
    NullDereference();
  })));
  EXPECT_TRUE(Died(RunChild(kProtected, [] {
    runtime::Allocate(0, 64);
    raise(SIGSEGV);
  })));
}

TEST(Fault, WithADumperInstalledBefore) {
  InChild(kProtected, [] {
    InstallDumper();
    ExpectLivesThroughAFault();
    EXPECT_EQ(g_dumps, 0);
  });
  EXPECT_TRUE(Died(RunChild(kProtected, [] {
    InstallDumper();
    ExpectLivesThroughAFault();
    NullDereference();
  })));
}

TEST(Fault, WithADumperInstalledAfter) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer blocks all signals while a handler runs, so a handler cannot raise one";
#endif
  InChild(kProtected, [] {
    char* block = static_cast<char*>(runtime::Allocate(0, 9000));
    InstallDumper();
    Touch(block);  // passes through the dumper, which raises it again
    EXPECT_EQ(g_dumps, 1);
    Report();
    InstallDumper();
    ExpectLivesThroughAFault();  // no driver allocation in between
    EXPECT_EQ(g_dumps, 2);
  });
  InChild(kProtected, [] {
    runtime::Allocate(0, 64);
    InstallDumper();
    runtime::Allocate(0, 32u << 20);  // the driver notices and goes on top
    ExpectLivesThroughAFault();
    EXPECT_EQ(g_dumps, 0);
    sigaction(SIGSEGV, &g_before, nullptr);  // the dumper goes away again
    ExpectLivesThroughAFault();
  });
  EXPECT_TRUE(Died(RunChild(kProtected, [] {
    runtime::Allocate(0, 64);
    InstallDumper();
    runtime::Allocate(0, 32u << 20);
    NullDereference();
  })));
}

TEST(Fault, OffByDefault) {
  InChild({}, [] {
    char* block = static_cast<char*>(runtime::Allocate(0, 64));
    EXPECT_EQ(runtime::HostViewOffset(0), 0);
    Store(block);
    runtime::CheckAttention("test_call");
    struct sigaction current = {};
    sigaction(SIGSEGV, nullptr, &current);
    EXPECT_EQ(runtime::g_attention.load(), 0u);
  });
}

}  // namespace
}  // namespace torch_fl::test
