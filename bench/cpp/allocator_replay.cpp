// SPDX-License-Identifier: Apache-2.0
// torch_fl_allocator_replay TRACE [--expandable]
//
// Replays a trace of allocations through this runtime's allocator on the host driver and through a model of torch's rules,
// and prints as JSON what each would have held. A line of a trace is `a ID SIZE STREAM` or `f ID`; `#` starts a comment.
// tools/allocator/record_trace.py makes them from real runs.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "rules_model.h"
#include "runtime/allocator.h"
#include "runtime/runtime.h"

namespace torch_fl::bench {
namespace {

struct Step {
  bool allocate = false;
  uint64_t id = 0;
  uint64_t size = 0;
  int64_t stream = 0;
};

std::vector<Step> ReadTrace(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  std::vector<Step> steps;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string kind;
    Step step;
    words >> kind >> step.id;
    step.allocate = kind == "a";
    if (step.allocate) words >> step.size >> step.stream;
    if (!words || (kind != "a" && kind != "f")) {
      throw std::runtime_error(path + ":" + std::to_string(number) +
                               ": expected `a ID SIZE STREAM` or `f ID`, got: " + line);
    }
    if (!step.allocate || step.size != 0) steps.push_back(step);
  }
  return steps;
}

// Trace streams in the order they appear; 0 is the default stream.
class Streams {
 public:
  runtime::Stream* Get(int64_t id) {
    if (id == 0) return runtime::DefaultStream(0);
    runtime::Stream*& stream = known_[id];
    if (stream == nullptr) stream = runtime::StreamFromPool(0, 0);
    return stream;
  }

 private:
  std::map<int64_t, runtime::Stream*> known_;
};

void Print(const char* name, uint64_t allocated, uint64_t reserved, uint64_t segments, const char* end) {
  const double ratio = allocated != 0 ? static_cast<double>(reserved) / static_cast<double>(allocated) : 0;
  std::printf("  \"%s\": {\"peak_allocated\": %llu, \"peak_reserved\": %llu, \"ratio\": %.4f, \"segments\": %llu}%s\n",
              name, static_cast<unsigned long long>(allocated), static_cast<unsigned long long>(reserved), ratio,
              static_cast<unsigned long long>(segments), end);
}

void Replay(const std::string& path, bool expandable) {
  const std::vector<Step> steps = ReadTrace(path);
  runtime::AllocatorConfig config;
  config.expandable_segments = expandable;
  runtime::SetAllocatorConfig(config);
  RulesModel model;
  Streams streams;
  std::map<uint64_t, void*> live;
  for (const Step& step : steps) {
    if (step.allocate) {
      model.Allocate(step.id, step.size, step.stream);
      runtime::ExchangeCurrentStream(streams.Get(step.stream));
      live[step.id] = runtime::Allocate(0, step.size, "replay");
    } else {
      model.Free(step.id);
      runtime::Free(live.at(step.id));
      live.erase(step.id);
    }
  }
  const runtime::MemoryStats stats = runtime::GetMemoryStats(0);
  std::printf("{\n  \"trace\": \"%s\",\n  \"events\": %zu,\n", path.c_str(), steps.size());
  Print(expandable ? "torch_fl_expandable" : "torch_fl",
        static_cast<uint64_t>(stats.allocated_bytes[runtime::kAllPools].peak),
        static_cast<uint64_t>(stats.reserved_bytes[runtime::kAllPools].peak),
        static_cast<uint64_t>(stats.segment[runtime::kAllPools].allocated), ",");
  Print("torch_rules", model.peak_allocated(), model.peak_reserved(), model.segments(), "");
  std::printf("}\n");
}

}  // namespace
}  // namespace torch_fl::bench

int main(int argc, char** argv) {
  const bool expandable = argc == 3 && std::string(argv[2]) == "--expandable";
  if (argc != 2 && !expandable) {
    std::fprintf(stderr, "usage: torch_fl_allocator_replay TRACE [--expandable]\n");
    return 2;
  }
  // Memory is never touched, so a large device costs nothing.
  setenv("FLAGOS_DRIVER", "host", 0);
  setenv("FLAGOS_HOST_MEMORY", "512G", 0);
  try {
    torch_fl::bench::Replay(argv[1], expandable);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torch_fl_allocator_replay: %s\n", error.what());
    return 1;
  }
  return 0;
}
