// ServingState tells the rest of the process about the loop: whether the loop takes requests,
// within which limits, and how busy it is.
//
// Thread safety: safe from any thread. The loop writes; calls, health checks and metrics read.
// Cost:          one short critical section per call.
#ifndef QUIRE_SCHEDULER_LOOP_SERVING_STATE_H_
#define QUIRE_SCHEDULER_LOOP_SERVING_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/step/rank_status.h"
#include "common/step/step_limits.h"
#include "scheduler/core/core_stats.h"
#include "scheduler/loop/swap_bytes.h"

namespace quire {

// Status of requests that lose their workers to another scheduler: kUnavailable SUPERSEDED.
absl::Status SupersededStatus();

class ServingState {
 public:
  enum class Group : uint8_t {
    kNeverReady,  // no group was ready since the start, or since the last standby ended
    kStandby,     // another scheduler holds the workers, or may hold them
    kReady,
    kLost,     // requests are queued, since a group is expected back
    kGivenUp,  // refuses requests: the wait for workers timed out, or the workers keep failing
  };
  struct Snapshot {
    Group group = Group::kNeverReady;
    bool draining = false;
    StepLimits limits;        // limits of the last ready group
    std::string numerics;     // Numerics::fingerprint of the last ready group
    int64_t block_bytes = 0;  // K and V of one block on one worker of the last ready group
    CoreStats stats;
    SwapBytes swap_bytes;
    int32_t num_open_requests = 0;
    Instant last_turn = 0;
    std::vector<RankStatus> ranks;

    bool is_ready() const { return group == Group::kReady && !draining; }
  };

  Snapshot Get() const;

  // Returns OK if a new request may enter the inbox. Errors: kUnavailable with LOADING, STANDBY,
  // NO_WORKERS or DRAINING.
  absl::Status CheckAdmission() const;

  // Returns OK until SetDraining is called. Errors: kUnavailable DRAINING.
  absl::Status CheckNotDraining() const;

  // Estimated time until all waiting requests have started; zero if unknown.
  absl::Duration queue_drain() const;

  void SetGroup(Group group);
  void SetGroupReady(const StepLimits& limits, std::string numerics, int64_t block_bytes);
  void SetDraining();
  void SetRanks(std::vector<RankStatus> ranks);
  void SetStats(const CoreStats& stats,
                const SwapBytes& swap_bytes,
                int32_t num_open_requests,
                Instant now);

 private:
  mutable Mutex mutex_;
  Snapshot snapshot_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_SERVING_STATE_H_
