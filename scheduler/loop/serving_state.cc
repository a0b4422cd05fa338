#include "scheduler/loop/serving_state.h"

#include <utility>

#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace quire {

absl::Status SupersededStatus() {
  return Error(absl::StatusCode::kUnavailable,
               "SUPERSEDED",
               "server: another scheduler has its workers, or its workers are unreachable");
}

ServingState::Snapshot ServingState::Get() const {
  MutexLock lock(mutex_);
  return snapshot_;
}

absl::Status ServingState::CheckNotDraining() const {
  MutexLock lock(mutex_);
  return snapshot_.draining
             ? Error(absl::StatusCode::kUnavailable, "DRAINING", "server: is shutting down")
             : absl::OkStatus();
}

absl::Status ServingState::CheckAdmission() const {
  QUIRE_RETURN_IF_ERROR(CheckNotDraining());
  MutexLock lock(mutex_);
  switch (snapshot_.group) {
    case Group::kNeverReady:
      return Error(absl::StatusCode::kUnavailable, "LOADING", "server: the model is loading");
    case Group::kStandby:
      return Error(absl::StatusCode::kUnavailable,
                   "STANDBY",
                   "server: is a standby, because another scheduler has the workers");
    case Group::kGivenUp:
      return Error(
          absl::StatusCode::kUnavailable, "NO_WORKERS", "server: no worker group is ready");
    case Group::kReady:
    case Group::kLost:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Duration ServingState::queue_drain() const {
  MutexLock lock(mutex_);
  return absl::Microseconds(snapshot_.stats.queue_drain_us);
}

void ServingState::SetGroup(Group group) {
  MutexLock lock(mutex_);
  snapshot_.group = group;
}

void ServingState::SetGroupReady(const StepLimits& limits,
                                 std::string numerics,
                                 int64_t block_bytes) {
  MutexLock lock(mutex_);
  snapshot_.group = Group::kReady;
  snapshot_.limits = limits;
  snapshot_.numerics = std::move(numerics);
  snapshot_.block_bytes = block_bytes;
}

void ServingState::SetDraining() {
  MutexLock lock(mutex_);
  snapshot_.draining = true;
}

void ServingState::SetRanks(std::vector<RankStatus> ranks) {
  MutexLock lock(mutex_);
  snapshot_.ranks = std::move(ranks);
}

void ServingState::SetStats(const CoreStats& stats,
                            const SwapBytes& swap_bytes,
                            int32_t num_open_requests,
                            Instant now) {
  MutexLock lock(mutex_);
  snapshot_.stats = stats;
  snapshot_.swap_bytes = swap_bytes;
  snapshot_.num_open_requests = num_open_requests;
  snapshot_.last_turn = now;
}

}  // namespace quire
