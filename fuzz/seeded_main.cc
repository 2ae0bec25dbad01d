// SPDX-License-Identifier: Apache-2.0
// torch_fl_driver_fuzz [--driver NAME|PATH] [--seed N] [--calls N] [--threads N] [--no-races] [--no-misuse]
//
// Random programs from a seed until that many calls were made. One program is reproduced with the seed that a failure
// prints and --calls 1.
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "driver_fuzz.h"
#include "runtime/runtime.h"

namespace {

using namespace torch_fl;

// An access that nothing orders is a data race by intent, so it is left out where races are what is looked for.
#if defined(__SANITIZE_THREAD__)
constexpr bool kRaces = false;
#else
constexpr bool kRaces = true;
#endif

constexpr size_t kProgramBytes = 3000;

[[noreturn]] void Usage(const char* argument) {
  std::fprintf(stderr,
               "torch_fl_driver_fuzz: bad argument %s\n"
               "use: [--driver NAME|PATH] [--seed N] [--calls N] [--threads N] [--no-races] [--no-misuse]\n",
               argument);
  std::exit(2);
}

uint64_t Number(const char* text) {
  char* end = nullptr;
  const uint64_t number = std::strtoull(text, &end, 10);
  if (end == text || *end != 0) Usage(text);
  return number;
}

// Each program has a seed of its own, `first`, `first + step`, ...
uint64_t Loop(uint64_t first, uint64_t step, uint64_t calls) {
  std::vector<uint8_t> bytes;
  uint64_t programs = 0;
  for (uint64_t seed = first; fuzz::CallCount() < calls; seed += step) {
    const std::string label =
        "seed " + std::to_string(seed) + " (repeat: --calls 1 --seed " + std::to_string(seed) + ")";
    fuzz::SetLabel(label.c_str());
    std::mt19937_64 random(seed);
    bytes.resize(random() % kProgramBytes);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    fuzz::RunProgram(bytes.data(), bytes.size());
    ++programs;
  }
  fuzz::SetLabel("");
  return programs;
}

}  // namespace

// The C library frees a dead thread's thread-locals while another thread starts or ends; that the first one has ended
// is known to the library only.
extern "C" const char* __tsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_suppressions() { return "race:_dl_deallocate_tls\n"; }

int main(int argc, char** argv) {
  uint64_t seed = 1;
  uint64_t calls = 1000000;
  uint64_t threads = 1;
  fuzz::g_options.races = kRaces;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--no-races" || name == "--no-misuse") {
      (name == "--no-races" ? fuzz::g_options.races : fuzz::g_options.misuse) = false;
      continue;
    }
    if (i + 1 == argc) Usage(argv[i]);
    const char* value = argv[++i];
    if (name == "--driver") {
      const bool path = std::strchr(value, '/') != nullptr;
      setenv(path ? "FLAGOS_DRIVER_PLUGIN" : "FLAGOS_DRIVER", value, 1);
      if (!path) unsetenv("FLAGOS_DRIVER_PLUGIN");
    } else if (name == "--seed") {
      seed = Number(value);
    } else if (name == "--calls") {
      calls = Number(value);
    } else if (name == "--threads") {
      threads = Number(value);
    } else {
      Usage(argv[i - 1]);
    }
  }
  if (threads == 0) Usage("--threads 0");
  try {
    runtime::Driver();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
  std::vector<std::thread> workers;
  std::atomic<uint64_t> made{0};
  std::atomic<uint64_t> programs{0};
  std::atomic<uint64_t> unordered{0};
  for (uint64_t i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] {
      programs += Loop(seed + i, threads, calls / threads + (i < calls % threads ? 1 : 0));
      made += fuzz::CallCount();
      unordered += fuzz::UnorderedCount();
    });
  }
  for (std::thread& worker : workers) worker.join();
  std::printf("driver fuzz: %s, %" PRIu64 " calls in %" PRIu64 " programs from seed %" PRIu64 ", %" PRIu64
              " refused as UNORDERED: clean\n",
              runtime::GetDriverInfo().name.c_str(), made.load(), programs.load(), seed, unordered.load());
  return 0;
}
