// Deadlines orders live requests by the time at which they expire.
//
// Thread safety: not thread-safe; owned by CoreState.
// Cost:          Add and Remove O(log requests); requests without a deadline cost nothing.
#ifndef QUIRE_SCHEDULER_CORE_DEADLINES_H_
#define QUIRE_SCHEDULER_CORE_DEADLINES_H_

#include <cstddef>
#include <optional>
#include <set>
#include <utility>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "scheduler/core/request.h"

namespace quire {

class Deadlines {
 public:
  void Add(const Request& request);
  void Remove(const Request& request);  // REQUIRES: added

  // Returns the earliest deadline, or kInfiniteFuture if no request has a deadline.
  Instant next() const;

  // Returns the request that expired first (deadline <= now), if any. Does not remove the request.
  std::optional<RequestId> FirstExpired(Instant now) const;

  size_t size() const { return by_time_.size(); }

 private:
  std::set<std::pair<Instant, RequestId>> by_time_;  // finite deadlines
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_DEADLINES_H_
