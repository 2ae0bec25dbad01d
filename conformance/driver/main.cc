// SPDX-License-Identifier: Apache-2.0
// torch_fl_driver_suite --driver NAME|PATH [--results FILE] [--timeout SECONDS] [--describe] [GoogleTest's options]
//
// --results appends one JSON line when a test starts and one when it ends, so that a crash loses one test only.
// --describe prints what the driver is and which optional entries it lacks, as JSON, and runs nothing.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "runtime/runtime.h"
#include "suite.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to the program

namespace torch_fl::suite {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kCannotLoad = 3;
constexpr int kHung = 97;
constexpr auto kChildDeadline = std::chrono::seconds(30);

std::map<std::string, Scenario>& Scenarios() {
  static auto* const scenarios = new std::map<std::string, Scenario>;
  return *scenarios;
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string List(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + Quoted(word);
  return "[" + out + "]";
}

std::string CapabilityNames(uint64_t bits) {
  constexpr std::pair<uint64_t, const char*> kNames[] = {
      {FLAGOS_CAP_HOST_VIEW, "HOST_VIEW"},
      {FLAGOS_CAP_ASYNC, "ASYNC"},
      {FLAGOS_CAP_EVENT_TIMING, "EVENT_TIMING"},
      {FLAGOS_CAP_STREAM_PRIORITY, "STREAM_PRIORITY"},
      {FLAGOS_CAP_UNIFIED_ADDRESS, "UNIFIED_ADDRESS"},
      {FLAGOS_CAP_ACCESS_FAULTS, "ACCESS_FAULTS"},
      {FLAGOS_CAP_KERNEL_ORDER, "KERNEL_ORDER"},
  };
  std::vector<std::string> names;
  for (const auto& [bit, name] : kNames) {
    if ((bits & bit) != 0) names.emplace_back(name);
  }
  return List(names);
}

void PrintDescription() {
  const runtime::DriverInfo& info = runtime::GetDriverInfo();
  std::vector<std::string> devices;
  for (int device = 0; device < DeviceCount(); ++device) {
    flagos_device_info_t facts{};
    facts.struct_size = sizeof facts;
    Check(D().device_info(device, &facts), "device_info");
    devices.emplace_back(facts.name);
  }
  int64_t driver = 0;
  int64_t library = 0;
  const bool known = D().versions != nullptr && D().versions(&driver, &library) == FLAGOS_OK;
  std::printf(
      "{\"name\": %s, \"platform\": %s, \"implementation\": %s, \"capabilities\": %s, \"layers\": %s, "
      "\"missing_entries\": %s, \"devices\": %s, \"versions\": [%lld, %lld]}\n",
      Quoted(info.name).c_str(), Quoted(info.platform).c_str(), Quoted(info.implementation).c_str(),
      CapabilityNames(info.capabilities).c_str(), List(info.layers).c_str(), List(info.missing_entries).c_str(),
      List(devices).c_str(), known ? static_cast<long long>(driver) : 0, known ? static_cast<long long>(library) : 0);
}

// Ends the process when one test, or the end of the process itself, takes too long. Its last words are the test's name.
class Watchdog : public testing::EmptyTestEventListener {
 public:
  explicit Watchdog(int seconds) : state_(new State{std::chrono::seconds(seconds)}) {
    std::thread([state = state_] { Watch(state); }).detach();
  }
  void OnTestStart(const testing::TestInfo& test) override {
    Expect(std::string(test.test_suite_name()) + "." + test.name());
  }
  void OnTestEnd(const testing::TestInfo&) override { Expect(""); }
  void OnTestProgramEnd(const testing::UnitTest&) override { Expect("Process.End"); }

 private:
  // Leaked: the thread outlives the listener.
  struct State {
    const std::chrono::seconds limit;
    std::mutex mutex = {};
    std::string name = {};
    Clock::time_point deadline = {};
  };

  void Expect(const std::string& name) {
    const std::lock_guard lock(state_->mutex);
    state_->name = name;
    state_->deadline = Clock::now() + state_->limit;
  }

  static void Watch(State* state) {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const std::lock_guard lock(state->mutex);
      if (state->name.empty() || Clock::now() < state->deadline) continue;
      std::fprintf(stderr, "\nwatchdog: %s did not end within %lld s\n", state->name.c_str(),
                   static_cast<long long>(state->limit.count()));
      _exit(kHung);
    }
  }

  State* const state_;
};

class Results : public testing::EmptyTestEventListener {
 public:
  explicit Results(const std::string& path) : file_(path, std::ios::app) {}
  void OnTestStart(const testing::TestInfo& test) override { Line(test, "started", ""); }
  void OnTestEnd(const testing::TestInfo& test) override {
    const testing::TestResult& result = *test.result();
    std::string text;
    for (int i = 0; i < result.total_part_count(); ++i) {
      const testing::TestPartResult& part = result.GetTestPartResult(i);
      if (part.passed()) continue;
      const char* file = part.file_name() != nullptr ? std::strrchr(part.file_name(), '/') : nullptr;
      if (!part.skipped() && file != nullptr) {
        text += std::string(file + 1) + ":" + std::to_string(part.line_number()) + ": ";
      }
      text += part.message();
      text += "\n";
    }
    while (!text.empty() && text.back() == '\n') text.pop_back();
    Line(test, result.Failed() ? "failed" : result.Skipped() ? "skipped" : "passed", text);
  }

 private:
  void Line(const testing::TestInfo& test, const char* status, const std::string& text) {
    file_ << "{\"test\": " << Quoted(std::string(test.test_suite_name()) + "." + test.name()) << ", \"status\": \""
          << status << "\", \"text\": " << Quoted(text) << "}\n"
          << std::flush;
  }
  std::ofstream file_;
};

int WaitForChild(pid_t child) {
  const auto deadline = Clock::now() + kChildDeadline;
  int status = 0;
  for (;;) {
    const pid_t done = waitpid(child, &status, WNOHANG);
    if (done == child) break;
    if (done < 0) {
      ADD_FAILURE() << "waitpid: " << std::strerror(errno);
      return -1;
    }
    if (Clock::now() > deadline) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      ADD_FAILURE() << "the child process did not end within " << kChildDeadline.count() << " s";
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  ADD_FAILURE() << "the child process died of signal " << WTERMSIG(status);
  return -1;
}

// Takes `--name value` or `--name=value` out of the arguments.
bool TakeOption(std::vector<char*>* arguments, const std::string& name, std::string* value) {
  for (size_t i = 1; i < arguments->size(); ++i) {
    const std::string argument = (*arguments)[i];
    const bool joined = argument.rfind(name + "=", 0) == 0;
    if (!joined && (argument != name || i + 1 >= arguments->size())) continue;
    *value = joined ? argument.substr(name.size() + 1) : (*arguments)[i + 1];
    arguments->erase(arguments->begin() + static_cast<ptrdiff_t>(i),
                     arguments->begin() + static_cast<ptrdiff_t>(i + (joined ? 1 : 2)));
    return true;
  }
  return false;
}

bool TakeFlag(std::vector<char*>* arguments, const std::string& name) {
  for (size_t i = 1; i < arguments->size(); ++i) {
    if ((*arguments)[i] != name) continue;
    arguments->erase(arguments->begin() + static_cast<ptrdiff_t>(i));
    return true;
  }
  return false;
}

void ChooseDriver(const std::string& driver) {
  if (driver.find('/') != std::string::npos) {
    setenv("FLAGOS_DRIVER_PLUGIN", driver.c_str(), 1);
    return;
  }
  unsetenv("FLAGOS_DRIVER_PLUGIN");
  setenv("FLAGOS_DRIVER", driver.c_str(), 1);
}

int Main(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  std::string value;
  if (TakeOption(&arguments, "--driver", &value)) ChooseDriver(value);
  if (TakeOption(&arguments, "--scenario", &value)) {
    const auto found = Scenarios().find(value);
    if (found == Scenarios().end()) throw Error(FLAGOS_INVALID_VALUE, "no scenario " + value);
    return found->second();
  }
  std::string results;
  TakeOption(&arguments, "--results", &results);
  std::string timeout = "60";
  TakeOption(&arguments, "--timeout", &timeout);
  const int seconds = std::atoi(timeout.c_str());
  if (seconds <= 0) throw Error(FLAGOS_INVALID_VALUE, "--timeout " + timeout + ": whole seconds, at least 1");
  const bool describe = TakeFlag(&arguments, "--describe");

  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  testing::InitGoogleTest(&count, arguments.data());
  if (count > 1) {
    std::fprintf(stderr, "unknown option %s\n", arguments[1]);
    return 2;
  }
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  try {
    D();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return kCannotLoad;
  }
  if (describe) {
    PrintDescription();
    return 0;
  }
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  listeners.Append(new Watchdog(seconds));
  if (!results.empty()) listeners.Append(new Results(results));
  return RUN_ALL_TESTS();
}

}  // namespace

bool RegisterScenario(const char* name, Scenario scenario) { return Scenarios().emplace(name, scenario).second; }

int RunForked(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    int result = 125;
    try {
      result = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    _exit(result);
  }
  if (child < 0) {
    ADD_FAILURE() << "fork: " << std::strerror(errno);
    return -1;
  }
  return WaitForChild(child);
}

int RunScenario(const std::string& name) {
  std::fflush(nullptr);
  std::string self = "/proc/self/exe";
  std::string option = "--scenario";
  std::string argument = name;
  std::vector<char*> arguments = {self.data(), option.data(), argument.data(), nullptr};
  pid_t child = 0;
  const int error = posix_spawn(&child, self.c_str(), nullptr, nullptr, arguments.data(), environ);
  if (error != 0) {
    ADD_FAILURE() << "posix_spawn: " << std::strerror(error);
    return -1;
  }
  return WaitForChild(child);
}

}  // namespace torch_fl::suite

// Read by the sanitizers' run times: an allocation that is too big must be refused, and tests fork with threads running.
extern "C" const char* __asan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1:die_after_fork=0"; }

// The C library frees a dead thread's thread-locals while another thread starts or ends; that the first one has ended
// is known to the library only.
extern "C" const char* __tsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_suppressions() { return "race:_dl_deallocate_tls\n"; }

int main(int argc, char** argv) {
  try {
    return torch_fl::suite::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
