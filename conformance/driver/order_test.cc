// SPDX-License-Identifier: Apache-2.0
// Order between streams: only waits make it, and waits do make it.
#include <algorithm>
#include <random>

#include "suite.h"

namespace torch_fl::suite {
namespace {

class Pipeline : public testing::TestWithParam<int> {};

// Stream i copies block i-1 to block i after an event of stream i-1, all queued while the first is held.
TEST_P(Pipeline, PassesDataFromStreamToStream) {
  NEED_DEVICES(1);
  constexpr size_t kSize = 50000;
  const int length = GetParam();
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  std::vector<std::unique_ptr<Block>> blocks;
  for (int i = 0; i < length; ++i) {
    const int device = i % DeviceCount();
    streams.push_back(std::make_unique<Stream>(device));
    events.push_back(std::make_unique<Event>(device));
    blocks.push_back(std::make_unique<Block>(device, kSize));
    blocks.back()->Write(Bytes(kSize, 0xDD));
  }
  for (int round = 0; round < 10; ++round) {
    std::unique_ptr<Gate> gate;
    if (D().stream_host_func != nullptr && Has(FLAGOS_CAP_ASYNC)) gate = std::make_unique<Gate>(*streams[0]);
    const Bytes data = Pattern(kSize, round);
    const Pinned source(data);
    CopyIn(*blocks[0], source.get(), kSize, streams[0]->get());
    events[0]->Record(*streams[0]);
    for (int i = 1; i < length; ++i) {
      streams[i]->Wait(events[i - 1]->get());
      CopyBlock(*blocks[i], *blocks[i - 1], kSize, streams[i]->get());
      events[i]->Record(*streams[i]);
    }
    if (gate != nullptr) gate->Open();
    ASSERT_OK(D().event_sync(events[length - 1]->get()));
    ASSERT_TRUE(Same(data, blocks[length - 1]->Read())) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Ordering, Pipeline, testing::Range(2, 9));

// A random program over several streams: each access waits for the accesses that it conflicts with, and for nothing
// else. The result must be that of the same program run in sequence.
class RandomGraph : public testing::TestWithParam<int> {
 protected:
  static constexpr size_t kSize = 3000;
  static constexpr int kBlocks = 6;
  static constexpr int kStreams = 5;
  static constexpr int kSteps = 400;

  struct Access {
    std::shared_ptr<Event> event;
    int stream;
  };
  struct Node {
    std::unique_ptr<Block> block;
    Bytes model;
    Access writer{nullptr, -1};
    std::vector<Access> readers;
  };

  void Before(const Node& node, bool write, int stream) {
    const auto wait = [&](const Access& access) {
      if (access.event != nullptr && access.stream != stream) streams_[stream]->Wait(access.event->get());
    };
    wait(node.writer);
    if (write) std::for_each(node.readers.begin(), node.readers.end(), wait);
  }

  static void After(Node* node, bool write, const Access& access) {
    if (!write) {
      node->readers.push_back(access);
      return;
    }
    node->writer = access;
    node->readers.clear();
  }

  int DeviceOf(int stream) const { return stream % DeviceCount(); }

  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Node> nodes_;
};

TEST_P(RandomGraph, EqualsTheSequentialProgram) {
  NEED_DEVICES(1);
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  for (int i = 0; i < kStreams; ++i) streams_.push_back(std::make_unique<Stream>(DeviceOf(i)));
  for (int i = 0; i < kBlocks; ++i) {
    Node node;
    node.block = std::make_unique<Block>(i % DeviceCount(), kSize);
    node.model = Pattern(kSize, i);
    node.block->Write(node.model);
    nodes_.push_back(std::move(node));
  }
  for (int step = 0; step < kSteps; ++step) {
    Node& dst = nodes_[random() % kBlocks];
    Node& src = nodes_[random() % kBlocks];
    const size_t begin = random() % kSize;
    const size_t size = 1 + random() % (kSize - begin);
    const auto at = static_cast<ptrdiff_t>(begin);
    const bool copies = &src != &dst && random() % 4 != 0;
    int stream = static_cast<int>(random() % kStreams);
    // A copy between devices may go on a stream of either; a fill needs one of its own device.
    while (DeviceOf(stream) != dst.block->device() && !(copies && DeviceOf(stream) == src.block->device())) {
      stream = (stream + 1) % kStreams;
    }
    const flagos_stream_t queue = streams_[stream]->get();
    Before(dst, true, stream);
    if (copies) {
      Before(src, false, stream);
      ASSERT_OK(
          D().copy(dst.block->at(begin), dst.block->device(), src.block->at(begin), src.block->device(), size, queue));
      std::copy_n(src.model.begin() + at, size, dst.model.begin() + at);
    } else {
      const auto value = static_cast<uint8_t>(random());
      ASSERT_OK(D().fill(dst.block->at(begin), dst.block->device(), value, size, queue));
      std::fill_n(dst.model.begin() + at, size, value);
    }
    const Access access{std::make_shared<Event>(DeviceOf(stream)), stream};
    access.event->Record(*streams_[stream]);
    After(&dst, true, access);
    if (copies) After(&src, false, access);
    if (step % 100 == 99) {
      ASSERT_OK(D().event_sync(dst.writer.event->get()));
      ASSERT_TRUE(Same(dst.model, dst.block->Read())) << "step " << step;
    }
  }
  for (const auto& stream : streams_) stream->Sync();
  for (int i = 0; i < kBlocks; ++i) ASSERT_TRUE(Same(nodes_[i].model, nodes_[i].block->Read())) << "block " << i;
}

INSTANTIATE_TEST_SUITE_P(Ordering, RandomGraph, testing::Range(1, 7));

TEST(Ordering, ReadersMayShareAWriterMayNot) {
  NEED_DEVICES(1);
  constexpr size_t kSize = 200000;
  const Block shared(0, kSize);
  const Stream writer(0);
  const Event written(0);
  std::vector<std::unique_ptr<Stream>> readers;
  std::vector<std::unique_ptr<Event>> read;
  std::vector<std::unique_ptr<Block>> copies;
  for (int i = 0; i < 4; ++i) {
    readers.push_back(std::make_unique<Stream>(0));
    read.push_back(std::make_unique<Event>(0));
    copies.push_back(std::make_unique<Block>(0, kSize));
  }
  for (int round = 0; round < 10; ++round) {
    const auto value = static_cast<uint8_t>(round);
    ASSERT_OK(D().fill(shared.get(), 0, value, kSize, writer.get()));
    written.Record(writer);
    for (int i = 0; i < 4; ++i) {
      readers[i]->Wait(written.get());
      CopyBlock(*copies[i], shared, kSize, readers[i]->get());
      read[i]->Record(*readers[i]);
      writer.Wait(read[i]->get());
    }
  }
  writer.Sync();
  for (const auto& stream : readers) stream->Sync();
  for (const auto& copy : copies) EXPECT_TRUE(Same(Bytes(kSize, 9), copy->Read()));
}

TEST(Ordering, ASynchronisedStreamOrdersTheHost) {
  NEED_DEVICES(1);
  const Block block(0, 10000);
  const Stream a(0);
  const Stream b(0);
  for (int round = 0; round < 100; ++round) {
    ASSERT_OK(D().fill(block.get(), 0, static_cast<uint8_t>(round), 10000, a.get()));
    a.Sync();
    ASSERT_OK(D().fill(block.at(5000), 0, static_cast<uint8_t>(round + 100), 5000, b.get()));
    b.Sync();
  }
  Bytes wanted(10000, 99);
  std::fill(wanted.begin() + 5000, wanted.end(), static_cast<uint8_t>(199));
  EXPECT_TRUE(Same(wanted, block.Read()));
}

TEST(Ordering, PingPongBetweenDevices) {
  NEED_DEVICES(2);
  constexpr size_t kSize = 65536;
  const Block a(0, kSize);
  const Block b(1, kSize);
  const Stream on_a(0);
  const Stream on_b(1);
  const Event to_b(0);
  const Event to_a(1);
  a.Write(Pattern(kSize, 1));
  for (int round = 0; round < 50; ++round) {
    CopyBlock(b, a, kSize, on_a.get());
    to_b.Record(on_a);
    on_b.Wait(to_b.get());
    ASSERT_OK(D().fill(b.at(round * 100), 1, static_cast<uint8_t>(round), 100, on_b.get()));
    CopyBlock(a, b, kSize, on_b.get());
    to_a.Record(on_b);
    on_a.Wait(to_a.get());
  }
  on_a.Sync();
  Bytes wanted = Pattern(kSize, 1);
  for (int round = 0; round < 50; ++round) std::fill_n(wanted.begin() + round * 100, 100, static_cast<uint8_t>(round));
  EXPECT_TRUE(Same(wanted, a.Read()));
}

}  // namespace
}  // namespace torch_fl::suite
