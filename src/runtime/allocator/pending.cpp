// SPDX-License-Identifier: Apache-2.0
// Freed blocks that other streams still use: an event for each use, looked at by every allocation until all are done.
#include <algorithm>
#include <cstdio>

#include "runtime/allocator/device_allocator.h"
#include "runtime/allocator/event_cache.h"

namespace torch_fl::runtime {
namespace {

// The stream has done what was queued on it. False when the driver cannot say: the device is lost.
bool WaitFor(Stream* stream) noexcept {
  try {
    stream->Synchronize();
    return true;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torch_fl: a freed block is never used again, its stream cannot be waited for: %s\n",
                 error.what());
    return false;
  }
}

}  // namespace

void DeviceAllocator::MarkUses(Block* block, const std::vector<Stream*>& streams) noexcept {
  for (Stream* stream : streams) {
    Event* event = nullptr;
    try {
      event = MarkStream(stream);
      if (event == nullptr) continue;
      Section section(*this);
      uses_[stream].push_back({next_use_++, event, block});
      ++block->events;
      attention_ |= kPending;
    } catch (...) {
      // Without an event there is the stream itself. Without that, nobody can tell when the block is free.
      const bool waited = WaitFor(stream);
      if (event != nullptr) ReturnEvent(event);
      if (waited) continue;
      Section section(*this);
      ++block->events;
      ++leaked_;
    }
  }
}

// Takes back what is done, without waiting.
void DeviceAllocator::PollUses() {
  // A long queue is looked at from its front only, as far as it is done.
  constexpr size_t kLook = 8;
  for (bool more = true; more;) {
    std::vector<std::pair<Stream*, Use>> asked;
    {
      Section section(*this);
      for (const auto& [stream, queue] : uses_) {
        for (size_t i = 0; i < std::min(kLook, queue.size()); ++i) asked.emplace_back(stream, queue[i]);
      }
    }
    std::map<Stream*, uint64_t> done;
    more = false;
    Stream* passed = nullptr;
    size_t in_a_row = 0;
    bool waiting = false;
    for (const auto& [stream, use] : asked) {
      if (stream != passed) {
        passed = stream;
        in_a_row = 0;
        waiting = false;
      }
      if (waiting) continue;
      if (QueryEvent(use.event)) {
        done[stream] = use.id;
        more |= ++in_a_row == kLook;
      } else {
        waiting = true;
      }
    }
    if (!done.empty()) FinishUses(done);
  }
}

void DeviceAllocator::AwaitUses() {
  std::vector<std::pair<Stream*, Use>> asked;
  {
    Section section(*this);
    ++stats().num_sync_all_streams;
    for (const auto& [stream, queue] : uses_) {
      for (const Use& use : queue) asked.emplace_back(stream, use);
    }
  }
  std::map<Stream*, uint64_t> done;
  for (const auto& [stream, use] : asked) {
    SynchronizeEvent(use.event);
    done[stream] = use.id;
  }
  FinishUses(done);
}

// Each stream has passed the use of that number.
void DeviceAllocator::FinishUses(const std::map<Stream*, uint64_t>& done) {
  std::vector<Block*> ready;
  std::vector<Event*> events;
  Section section(*this);
  for (const auto& [stream, last] : done) {
    const auto found = uses_.find(stream);
    if (found == uses_.end()) continue;
    std::deque<Use>& queue = found->second;
    while (!queue.empty() && queue.front().id <= last) {
      const Use use = queue.front();
      queue.pop_front();
      ReturnEvent(use.event);
      if (--use.block->events == 0) ready.push_back(use.block);
    }
    if (queue.empty()) uses_.erase(found);
  }
  if (uses_.empty()) attention_ &= ~kPending;
  if (poison_ && !ready.empty()) {
    section.Unlock();
    for (const Block* block : ready) PoisonFreed(*block);
    section.Lock();
  }
  for (Block* block : ready) FinishFree(section, block);
}

}  // namespace torch_fl::runtime
