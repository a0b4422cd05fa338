#include "scheduler/core/handle_pool.h"

#include <utility>

#include "common/base/check.h"

namespace quire {

HandlePool::HandlePool(int32_t max_handles) : is_in_use_(static_cast<size_t>(max_handles), false) {
  QUIRE_CHECK(max_handles >= 0);
  free_.reserve(static_cast<size_t>(max_handles));
  for (int32_t handle = max_handles - 1; handle >= 0; --handle) {
    free_.push_back(static_cast<SequenceHandle>(handle));
  }
}

std::optional<SequenceHandle> HandlePool::Next() const {
  return free_.empty() ? std::nullopt : std::optional(free_.back());
}

SequenceHandle HandlePool::Take() {
  QUIRE_CHECK(!free_.empty());
  SequenceHandle handle = free_.back();
  free_.pop_back();
  is_in_use_[handle] = true;
  return handle;
}

void HandlePool::GiveBack(SequenceHandle handle) {
  QUIRE_CHECK(is_in_use(handle));
  is_in_use_[handle] = false;
  to_release_.push_back(handle);
}

void HandlePool::GiveBackUnused(SequenceHandle handle) {
  QUIRE_CHECK(is_in_use(handle));
  is_in_use_[handle] = false;
  free_.push_back(handle);
}

std::vector<SequenceHandle> HandlePool::TakeReleases() {
  // Inserts the handles below the top handle. The top handle stays the next one, because workers
  // may have prepared for it.
  free_.insert(free_.end() - (free_.empty() ? 0 : 1), to_release_.begin(), to_release_.end());
  return std::exchange(to_release_, {});
}

bool HandlePool::is_in_use(SequenceHandle handle) const {
  return handle < is_in_use_.size() && is_in_use_[handle];
}

}  // namespace quire
