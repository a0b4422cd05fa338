#include "scheduler/core/deadlines.h"

#include "common/base/check.h"

namespace quire {

void Deadlines::Add(const Request& request) {
  if (request.deadline != kInfiniteFuture) {
    by_time_.emplace(request.deadline, request.id);
  }
}

void Deadlines::Remove(const Request& request) {
  if (request.deadline != kInfiniteFuture) {
    QUIRE_CHECK_EQ(by_time_.erase({request.deadline, request.id}), size_t{1});
  }
}

Instant Deadlines::next() const {
  return by_time_.empty() ? kInfiniteFuture : by_time_.begin()->first;
}

std::optional<RequestId> Deadlines::FirstExpired(Instant now) const {
  if (by_time_.empty() || by_time_.begin()->first > now) {
    return std::nullopt;
  }
  return by_time_.begin()->second;
}

}  // namespace quire
