// WorkerWait measures how long requests wait for workers that give tokens. The wait is the time
// without a ready group, plus the time of failed epochs. An epoch lasts while a group is ready; it
// failed if there was work but the group gave no token. A failed epoch counts for at most
// kMaxPerEpochNs, because it may have been one long step without a fault. Time in which a worker
// makes progress in loading does not count.
//
// Thread safety: a value type.
#ifndef QUIRE_SCHEDULER_LOOP_WORKER_WAIT_H_
#define QUIRE_SCHEDULER_LOOP_WORKER_WAIT_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"

#include "common/base/clock.h"

namespace quire {

class WorkerWait {
 public:
  // Upper bound on the time that a failed epoch adds to the wait. Longer than the defaults of
  // GroupTiming::lease_ns and --step-timeout, which bound the time until a fault is detected.
  static constexpr int64_t kMaxPerEpochNs = 6 * kNanosPerSecond;

  // Begins with a wait, since there is no group yet.
  explicit WorkerWait(Instant now) : since_(now) {}

  // had_work: true if the core had requests or unfinished swaps. Without work, an epoch that gave
  // no token does not count as failed.
  void OnLost(Instant now, absl::Status cause, bool had_work) {
    const bool has_failed = had_work && !has_given_tokens_;
    const int64_t ready_ns = std::min(now - ready_at_, kMaxPerEpochNs);
    num_failed_epochs_ = has_failed ? num_failed_epochs_ + 1 : 0;
    waited_ns_ = has_failed ? waited_ns_ + ready_ns : 0;
    cause_ = std::move(cause);
    since_ = now;
  }

  void OnLoading(Instant now) {
    if (since_.has_value()) {
      since_ = now;
    }
  }

  // Keeps the time waited so far if the previous epoch failed, because the new epoch may fail too.
  void OnReady(Instant now) {
    const int64_t waited_now_ns = since_.has_value() ? now - *since_ : 0;
    waited_ns_ = num_failed_epochs_ > 0 ? waited_ns_ + waited_now_ns : 0;
    since_.reset();
    ready_at_ = now;
    has_given_tokens_ = false;
  }

  void OnTokens() { has_given_tokens_ = true; }

  // Begins a wait for workers.
  void Restart(Instant now) { since_ = now; }

  // Ends the wait for workers.
  void Stop() { since_.reset(); }

  // Returns the time at which the wait will have lasted timeout_ns; kInfiniteFuture without a wait.
  Instant EndsAt(int64_t timeout_ns) const {
    return since_.has_value() ? *since_ + (timeout_ns - waited_ns_) : kInfiniteFuture;
  }

  // Number of consecutive epochs that were lost before they gave waiting requests a token.
  int32_t num_failed_epochs() const { return num_failed_epochs_; }
  // The reason for the last loss of a group.
  const absl::Status& cause() const { return cause_; }

 private:
  std::optional<Instant> since_;   // start of the present wait; nullopt: none
  Instant ready_at_ = 0;           // time at which the last group became ready
  bool has_given_tokens_ = false;  // whether the last group has given a token
  int64_t waited_ns_ = 0;          // time counted before since_, over consecutive failed epochs
  int32_t num_failed_epochs_ = 0;
  absl::Status cause_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_WORKER_WAIT_H_
