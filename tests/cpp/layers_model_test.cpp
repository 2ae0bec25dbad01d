// SPDX-License-Identifier: Apache-2.0
// Random programs: the validate layer's verdict on every access against a slow model that knows no clocks, only a graph
// of what each call puts before what, and searches it.
#include <array>
#include <random>

#include "fake_driver.h"

namespace torch_fl::test {
namespace {

constexpr int kPrograms = 3000;
constexpr int kCalls = 60;
constexpr size_t kUnit = 16;  // bytes; accesses begin and end at multiples
constexpr size_t kUnits = 8;
constexpr int kStreams = 4;  // two on each device
constexpr int kEvents = 3;
constexpr int kBlocks = 2;  // one on each device

int DeviceOf(int stream) { return stream / 2; }

// Nodes are calls; an edge leads from a node to one that comes before it.
class Model {
 public:
  int Add(std::vector<int> before) {
    before_.push_back(std::move(before));
    return static_cast<int>(before_.size()) - 1;
  }
  // By node: whether it comes before `later`.
  std::vector<char> Before(int later) const {
    std::vector<char> seen(before_.size(), 0);
    std::vector<int> open{later};
    while (!open.empty()) {
      const int node = open.back();
      open.pop_back();
      if (std::exchange(seen[static_cast<size_t>(node)], 1) != 0) continue;
      for (const int next : before_[static_cast<size_t>(node)]) open.push_back(next);
    }
    return seen;
  }

  struct Touch {
    int block;
    size_t begin, end;  // units
    bool is_write;
  };
  struct Done {
    int node;
    Touch touch;
  };
  std::vector<Done> done;  // every access that was made

  bool Races(int node, const Touch& touch) const {
    const std::vector<char> before = Before(node);
    for (const Done& other : done) {
      if (other.touch.block != touch.block || (!other.touch.is_write && !touch.is_write)) continue;
      if (other.touch.begin >= touch.end || touch.begin >= other.touch.end) continue;
      if (before[static_cast<size_t>(other.node)] == 0) return true;
    }
    return false;
  }

 private:
  std::vector<std::vector<int>> before_;
};

class Program {
 public:
  Program(const flagos_driver_v1_t& table, uint32_t seed) : t_(table), random_(seed) {
    for (int i = 0; i < kStreams; ++i) streams_[Index(i)] = NewStream(t_, DeviceOf(i));
    for (auto& event : events_) event = NewEvent(t_, 0);
    for (int i = 0; i < kBlocks; ++i) blocks_[Index(i)] = Block(t_, kUnits * kUnit, i);
    host_ = model_.Add({});
    tail_.fill(host_);
    recorded_.fill(-1);
  }
  ~Program() {
    for (int i = 0; i < kBlocks; ++i) EXPECT_EQ(t_.memory_free(i, blocks_[Index(i)]), FLAGOS_OK);
    for (flagos_stream_t stream : streams_) EXPECT_EQ(t_.stream_destroy(stream), FLAGOS_OK);
    for (flagos_event_t event : events_) EXPECT_EQ(t_.event_destroy(event), FLAGOS_OK);
  }

  // False when the verdicts differ. `races` counts what both found.
  bool Run(uint64_t* races) {
    for (int call = 0; call < kCalls; ++call) {
      if (!Step(races)) return false;
    }
    return true;
  }
  const std::string& log() const { return log_; }

 private:
  static size_t Index(int i) { return static_cast<size_t>(i); }
  int Pick(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }
  void Log(const std::string& line) { log_ += line + "\n"; }

  // A call on the stream: behind the stream's last, and behind what the host saw.
  int OnStream(int stream) { return model_.Add({tail_[Index(stream)], host_}); }
  void HostSaw(int node) { host_ = model_.Add({host_, node}); }

  Model::Touch RandomTouch(int block, bool is_write) {
    const auto begin = static_cast<size_t>(Pick(kUnits));
    const auto end = begin + 1 + static_cast<size_t>(Pick(static_cast<int>(kUnits - begin)));
    return {block, begin, end, is_write};
  }
  char* Address(const Model::Touch& touch) { return At(blocks_[Index(touch.block)], touch.begin * kUnit); }
  static size_t Size(const Model::Touch& touch) { return (touch.end - touch.begin) * kUnit; }

  // The call returned `status`. Kernels have run whatever the verdict; then the program ends, because from a race on the
  // layer keeps the last access only.
  bool Judge(const char* what, int node, int stream, const std::vector<Model::Touch>& touches, flagos_status_t status,
             uint64_t* races) {
    bool race = false;
    for (const Model::Touch& touch : touches) race = race || model_.Races(node, touch);
    std::string line = std::string(what) + " stream " + std::to_string(stream);
    for (const Model::Touch& touch : touches) {
      line += (touch.is_write ? " write " : " read ") + std::to_string(touch.block) + "[" +
              std::to_string(touch.begin) + "," + std::to_string(touch.end) + ")";
    }
    Log(line + (status == FLAGOS_OK ? "" : " refused"));
    EXPECT_TRUE(status == FLAGOS_OK || status == FLAGOS_UNORDERED) << Text(t_);
    if (race != (status == FLAGOS_UNORDERED)) return false;
    *races += race ? 1 : 0;
    if (race) return true;
    for (const Model::Touch& touch : touches) model_.done.push_back({node, touch});
    if (stream >= 0) {
      tail_[Index(stream)] = node;
    } else {
      HostSaw(node);
    }
    return true;
  }

  bool Step(uint64_t* races) {
    const int stream = Pick(kStreams);
    const int event = Pick(kEvents);
    const int device = DeviceOf(stream);
    switch (Pick(12)) {
      case 0:
      case 1: {
        const auto touch = RandomTouch(device, true);
        const int node = OnStream(stream);
        const auto status = t_.fill(Address(touch), device, 0, Size(touch), streams_[Index(stream)]);
        return Judge("fill", node, stream, {touch}, status, races);
      }
      case 2:
      case 3: {
        auto to = RandomTouch(Pick(kBlocks), true);
        Model::Touch from{1 - to.block, to.begin, to.end, false};
        const int node = OnStream(stream);
        const auto status =
            t_.copy(Address(to), to.block, Address(from), from.block, Size(to), streams_[Index(stream)]);
        return Judge("copy", node, stream, {to, from}, status, races);
      }
      case 4:
      case 5: {
        // A kernel that races is not made: the layer would keep it, and its order, after the fact.
        std::vector<Model::Touch> touches{RandomTouch(device, false), RandomTouch(device, Pick(2) == 0)};
        const int node = OnStream(stream);
        for (const Model::Touch& touch : touches) {
          if (model_.Races(node, touch)) return true;
        }
        std::vector<flagos_access_t> accesses;
        for (const Model::Touch& touch : touches) accesses.push_back({Address(touch), Size(touch), touch.is_write});
        const auto status = RunKernel(t_, streams_[Index(stream)], "kernel", accesses);
        return Judge("kernel", node, stream, touches, status, races);
      }
      case 6: {  // without a stream: behind everything on the device
        const auto touch = RandomTouch(device, true);
        std::vector<int> before{host_};
        for (int i = 0; i < kStreams; ++i) {
          if (DeviceOf(i) == device) before.push_back(tail_[Index(i)]);
        }
        const int node = model_.Add(before);
        const auto status = t_.fill(Address(touch), device, 0, Size(touch), nullptr);
        return Judge("fill", node, -1, {touch}, status, races);
      }
      case 7:
      case 8: {
        const int on = Pick(2);  // events are of device 0
        EXPECT_EQ(t_.event_record(events_[Index(event)], streams_[Index(on)]), FLAGOS_OK);
        recorded_[Index(event)] = OnStream(on);
        Log("record event " + std::to_string(event) + " on stream " + std::to_string(on));
        return true;
      }
      case 9:
      case 10: {
        EXPECT_EQ(t_.stream_wait(streams_[Index(stream)], events_[Index(event)]), FLAGOS_OK);
        std::vector<int> before{tail_[Index(stream)], host_};
        if (recorded_[Index(event)] >= 0) before.push_back(recorded_[Index(event)]);
        tail_[Index(stream)] = model_.Add(before);
        Log("stream " + std::to_string(stream) + " waits for event " + std::to_string(event));
        return true;
      }
      default:
        return Observe(stream, event, device);
    }
  }

  bool Observe(int stream, int event, int device) {
    Fake().query = Pick(2) == 0 ? FLAGOS_OK : FLAGOS_NOT_READY;
    switch (Pick(5)) {
      case 0:
        EXPECT_EQ(t_.stream_sync(streams_[Index(stream)]), FLAGOS_OK);
        HostSaw(tail_[Index(stream)]);
        Log("sync stream " + std::to_string(stream));
        return true;
      case 1:
        EXPECT_EQ(t_.event_sync(events_[Index(event)]), FLAGOS_OK);
        if (recorded_[Index(event)] >= 0) HostSaw(recorded_[Index(event)]);
        Log("sync event " + std::to_string(event));
        return true;
      case 2:
        EXPECT_EQ(t_.stream_query(streams_[Index(stream)]), Fake().query);
        if (Fake().query == FLAGOS_OK) HostSaw(tail_[Index(stream)]);
        Log("query stream " + std::to_string(stream) + " " + std::to_string(Fake().query));
        return true;
      case 3:
        EXPECT_EQ(t_.event_query(events_[Index(event)]), Fake().query);
        if (Fake().query == FLAGOS_OK && recorded_[Index(event)] >= 0) HostSaw(recorded_[Index(event)]);
        Log("query event " + std::to_string(event) + " " + std::to_string(Fake().query));
        return true;
      default:
        EXPECT_EQ(t_.device_sync(device), FLAGOS_OK);
        for (int i = 0; i < kStreams; ++i) {
          if (DeviceOf(i) == device) HostSaw(tail_[Index(i)]);
        }
        Log("sync device " + std::to_string(device));
        return true;
    }
  }

  const flagos_driver_v1_t& t_;
  std::mt19937 random_;
  Model model_;
  int host_ = -1;  // the last thing the host saw
  std::array<int, kStreams> tail_{};  // the last call on each stream
  std::array<int, kEvents> recorded_{};  // node of the record, -1: never
  std::array<flagos_stream_t, kStreams> streams_{};
  std::array<flagos_event_t, kEvents> events_{};
  std::array<void*, kBlocks> blocks_{};
  std::string log_;
};

TEST(LayersModel, RandomPrograms) {
  InChild({}, [] {
    const flagos_driver_v1_t& t = InLayers("validate");
    uint64_t races = 0;
    for (uint32_t seed = 1; seed <= kPrograms; ++seed) {
      Program program(t, seed);
      if (!program.Run(&races)) {
        ADD_FAILURE() << "seed " << seed << ": the model and the layer disagree on the last call of\n"
                      << program.log() << "the layer says: " << Text(t);
        return;
      }
      Fake().calls.clear();
    }
    // Neither all right nor all wrong: both verdicts were compared often.
    const auto counts = runtime::GetValidateCounts();
    EXPECT_EQ(counts.unordered, races);
    EXPECT_EQ(counts.misuses, 0u);
    EXPECT_GT(races, counts.accesses / 20);
    EXPECT_LT(races, counts.accesses / 2);
  });
}

}  // namespace
}  // namespace torch_fl::test
