// SPDX-License-Identifier: Apache-2.0
#include "runtime/layers/order.h"

#include <algorithm>
#include <iterator>

namespace torch_fl::runtime::layers {

void Join(Clock* clock, const Clock& other) {
  if (clock->size() < other.size()) clock->resize(other.size(), 0);
  for (size_t i = 0; i < other.size(); ++i) (*clock)[i] = std::max((*clock)[i], other[i]);
}

uint32_t Order::OpenStream(int device) {
  const auto free = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    const auto index = static_cast<size_t>(&slot - slots_.data());
    return slot.users == 0 && (slot.last == 0 || (index < host_.size() && host_[index] >= slot.last));
  });
  const auto index = static_cast<uint32_t>(free - slots_.begin());
  if (free == slots_.end()) slots_.emplace_back();
  slots_[index] = Slot{device, 1, slots_[index].last, {}};
  return index;
}

void Order::CloseStream(uint32_t slot) { --slots_[slot].users; }

const Clock& Order::Now(uint32_t slot) {
  Join(&slots_[slot].clock, host_);
  return slots_[slot].clock;
}

Clock Order::OfDevices(int device, int other) const {
  Clock clock = host_;
  for (const Slot& slot : slots_) {
    if (slot.device >= 0 && (slot.device == device || slot.device == other)) Join(&clock, slot.clock);
  }
  return clock;
}

void Order::Submitted(uint32_t slot, uint64_t number) {
  Clock& clock = slots_[slot].clock;
  if (clock.size() <= slot) clock.resize(slot + 1, 0);
  clock[slot] = number;
  slots_[slot].last = number;
}

std::optional<History::Conflict> History::Find(uintptr_t begin, uintptr_t end, bool is_write,
                                               const Clock& clock) const {
  auto node = nodes_.upper_bound(begin);
  if (node != nodes_.begin() && std::prev(node)->second.end > begin) --node;
  for (; node != nodes_.end() && node->first < end; ++node) {
    const auto conflict = [&](const Access& access) {
      return Conflict{access, std::max(begin, node->first), std::min(end, node->second.end)};
    };
    const Access& writer = node->second.writer;
    if (writer.number != 0 && !Covers(clock, writer)) return conflict(writer);
    if (!is_write) continue;
    for (const Access& reader : node->second.readers) {
      if (!Covers(clock, reader)) return conflict(reader);
    }
  }
  return std::nullopt;
}

void History::Record(uintptr_t begin, uintptr_t end, const Access& access, const Clock& host) {
  SplitAt(begin);
  SplitAt(end);
  auto node = nodes_.lower_bound(begin);
  if (access.is_write) {
    nodes_.erase(node, nodes_.lower_bound(end));
    nodes_.emplace(begin, Node{end, access, {}});
  } else {
    for (uintptr_t at = begin; at < end;) {
      const bool gap = node == nodes_.end() || node->first > at;
      if (gap) {
        const uintptr_t gap_end = node == nodes_.end() ? end : std::min(end, node->first);
        node = nodes_.emplace_hint(node, at, Node{gap_end, {}, {access}});
      } else {
        auto& readers = node->second.readers;
        std::erase_if(readers,
                      [&](const Access& reader) { return reader.slot == access.slot || Covers(host, reader); });
        readers.push_back(access);
      }
      at = node->second.end;
      ++node;
    }
  }
  if (nodes_.size() > sweep_at_) {
    Sweep(host);
    sweep_at_ = std::max(kFirstSweep, 2 * nodes_.size());
  }
}

History::Nodes History::Take(uintptr_t begin, uintptr_t end) {
  SplitAt(begin);
  SplitAt(end);
  Nodes taken;
  for (auto node = nodes_.lower_bound(begin); node != nodes_.end() && node->first < end;) {
    auto next = std::next(node);
    taken.insert(nodes_.extract(node));
    node = next;
  }
  return taken;
}

void History::SplitAt(uintptr_t address) {
  auto node = nodes_.upper_bound(address);
  if (node == nodes_.begin()) return;
  --node;
  if (node->first == address || node->second.end <= address) return;
  Node tail = node->second;
  node->second.end = address;
  nodes_.emplace_hint(std::next(node), address, std::move(tail));
}

// Forgets what is covered and joins neighbours that became equal.
void History::Sweep(const Clock& host) {
  const auto same = [](const Node& a, const Node& b) {
    return a.writer.number == b.writer.number &&
           std::equal(a.readers.begin(), a.readers.end(), b.readers.begin(), b.readers.end(),
                      [](const Access& x, const Access& y) { return x.number == y.number; });
  };
  for (auto node = nodes_.begin(); node != nodes_.end();) {
    Node& now = node->second;
    std::erase_if(now.readers, [&](const Access& reader) { return Covers(host, reader); });
    if (now.writer.number != 0 && Covers(host, now.writer)) now.writer = {};
    if (now.writer.number == 0 && now.readers.empty()) {
      node = nodes_.erase(node);
      continue;
    }
    if (node != nodes_.begin()) {
      Node& before = std::prev(node)->second;
      if (before.end == node->first && same(before, now)) {
        before.end = now.end;
        node = nodes_.erase(node);
        continue;
      }
    }
    ++node;
  }
}

}  // namespace torch_fl::runtime::layers
