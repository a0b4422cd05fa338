#include "scheduler/loop/serving_state.h"

#include <utility>

#include "common/base/error.h"

namespace quire {

absl::Status SupersededStatus() {
  return Error(absl::StatusCode::kUnavailable,
               "SUPERSEDED",
               "server: another scheduler has taken over the workers");
}

ServingState::Snapshot ServingState::Get() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return snapshot_;
}

absl::Status ServingState::CheckAdmission() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (snapshot_.draining) {
    return Error(absl::StatusCode::kUnavailable, "DRAINING", "server: is shutting down");
  }
  switch (snapshot_.group) {
    case Group::kNeverReady:
      return Error(absl::StatusCode::kUnavailable, "LOADING", "server: the model is loading");
    case Group::kGivenUp:
      return Error(absl::StatusCode::kUnavailable, "NO_WORKERS", "server: no worker is reachable");
    case Group::kSuperseded:
      return SupersededStatus();
    case Group::kReady:
    case Group::kLost:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Duration ServingState::queue_drain() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return absl::Microseconds(snapshot_.stats.queue_drain_us);
}

void ServingState::SetGroup(Group group) {
  std::lock_guard<std::mutex> lock(mutex_);
  snapshot_.group = group;
}

void ServingState::SetGroupReady(const StepLimits& limits,
                                 std::string numerics,
                                 int64_t block_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  snapshot_.group = Group::kReady;
  snapshot_.limits = limits;
  snapshot_.numerics = std::move(numerics);
  snapshot_.block_bytes = block_bytes;
}

void ServingState::SetDraining() {
  std::lock_guard<std::mutex> lock(mutex_);
  snapshot_.draining = true;
}

void ServingState::SetRanks(std::vector<RankStatus> ranks) {
  std::lock_guard<std::mutex> lock(mutex_);
  snapshot_.ranks = std::move(ranks);
}

void ServingState::SetStats(const CoreStats& stats,
                            const SwapBytes& swap_bytes,
                            int32_t num_open_requests,
                            Instant now) {
  std::lock_guard<std::mutex> lock(mutex_);
  snapshot_.stats = stats;
  snapshot_.swap_bytes = swap_bytes;
  snapshot_.num_open_requests = num_open_requests;
  snapshot_.last_turn = now;
}

}  // namespace quire
