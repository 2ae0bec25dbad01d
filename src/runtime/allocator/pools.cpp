// SPDX-License-Identifier: Apache-2.0
// Private pools: which pool an allocation comes from, and how long a pool lives.
#include <algorithm>
#include <mutex>
#include <string>

#include "runtime/allocator/device_allocator.h"

namespace torch_fl::runtime {
namespace {

std::string Text(MemoryPoolId id) { return "{" + std::to_string(id.first) + ", " + std::to_string(id.second) + "}"; }

void CheckPrivate(MemoryPoolId id, const char* call) {
  if (id != MemoryPoolId{}) return;
  throw Error(FLAGOS_INVALID_VALUE, std::string(call) + ": {0, 0} is the shared pool; give a private pool's id");
}

}  // namespace

// The filters are foreign code: called on a copy of their list.
MemoryPoolId DeviceAllocator::ChoosePool() {
  std::vector<Filter> filters;
  {
    const std::lock_guard lock(lock_);
    filters = filters_;
  }
  Stream* const stream = CurrentStream(device_);
  for (auto it = filters.rbegin(); it != filters.rend(); ++it) {
    if ((*it->accepts)(stream)) return it->id;
  }
  return {};
}

PoolGroup* DeviceAllocator::GroupOf(MemoryPoolId id) {
  if (id == MemoryPoolId{}) return &shared_;
  std::unique_ptr<PoolGroup>& group = groups_[id];
  if (group == nullptr) group = std::make_unique<PoolGroup>(id);
  return group.get();
}

StreamPool* DeviceAllocator::PoolOf(PoolGroup* group, int64_t stream_id) {
  const auto index = static_cast<size_t>(stream_id);
  if (index >= group->by_stream.size()) group->by_stream.resize(index + 1);
  std::unique_ptr<StreamPool>& pool = group->by_stream[index];
  if (pool == nullptr) pool = std::make_unique<StreamPool>(group, stream_id);
  return pool.get();
}

// Whether EmptyCache, of `id` or of all, may give memory of the group back.
bool DeviceAllocator::MayRelease(const PoolGroup& group, const std::optional<MemoryPoolId>& id) const noexcept {
  return (!id.has_value() || *id == group.id) && group.uses == 0;
}

// Private pools that nobody retains, fills or holds memory of.
void DeviceAllocator::DropEmptyGroups() {
  if (growing_.load() != 0) return;
  for (auto it = groups_.begin(); it != groups_.end();) {
    const PoolGroup* group = it->second.get();
    const bool filled =
        std::any_of(filters_.begin(), filters_.end(), [&](const Filter& f) { return f.id == group->id; });
    const bool held = std::any_of(segments_.begin(), segments_.end(),
                                  [&](const auto& entry) { return entry.second->pool->group == group; });
    it = group->uses != 0 || filled || held ? std::next(it) : groups_.erase(it);
  }
}

void DeviceAllocator::BeginPool(MemoryPoolId id, std::function<bool(Stream*)> filter) {
  CheckPrivate(id, "begin_allocate_to_pool");
  auto accepts = std::make_shared<const std::function<bool(Stream*)>>(std::move(filter));
  Section section(*this);
  GroupOf(id);
  filters_.push_back({id, std::move(accepts)});
  attention_ |= kFilters;
}

void DeviceAllocator::EndPool(MemoryPoolId id) {
  Filter ended;  // dies outside the lock
  {
    Section section(*this);
    const auto found = std::find_if(filters_.rbegin(), filters_.rend(), [&](const Filter& f) { return f.id == id; });
    if (found != filters_.rend()) {
      ended = std::move(*found);
      filters_.erase(std::next(found).base());
      if (filters_.empty()) attention_ &= ~kFilters;
      return;
    }
  }
  throw Error(FLAGOS_INVALID_VALUE, "end_allocate_to_pool: no allocation to pool " + Text(id) +
                                        " was begun on flagos:" + std::to_string(device_));
}

void DeviceAllocator::RetainPool(MemoryPoolId id) {
  CheckPrivate(id, "retain_pool");
  Section section(*this);
  ++GroupOf(id)->uses;
}

void DeviceAllocator::ReleasePool(MemoryPoolId id) {
  {
    Section section(*this);
    const auto found = groups_.find(id);
    if (found != groups_.end() && found->second->uses > 0) {
      --found->second->uses;
      return;
    }
  }
  throw Error(FLAGOS_INVALID_VALUE,
              "release_pool: pool " + Text(id) + " is not retained on flagos:" + std::to_string(device_));
}

int DeviceAllocator::PoolUses(MemoryPoolId id) {
  Section section(*this);
  const auto found = groups_.find(id);
  return found != groups_.end() ? found->second->uses : 0;
}

}  // namespace torch_fl::runtime
