// SchedulerClaim records the worker's holder: the newest scheduler that asked to begin an epoch, a
// series of steps. A scheduler becomes the holder as soon as it asks, long before its epoch begins.
// Otherwise schedulers that start at the same time would abort each other's attempts to connect the
// ranks, again and again.
//
// A standby is a scheduler that waits. A standby takes over if the worker has not heard from the
// holder for some time. So the claim also measures the time since the worker last heard from the
// holder.
//
// Thread safety: not thread-safe.
#ifndef QUIRE_WORKER_RUNTIME_SCHEDULER_CLAIM_H_
#define QUIRE_WORKER_RUNTIME_SCHEDULER_CLAIM_H_

#include <cstdint>

#include "absl/status/status.h"

#include "common/base/clock.h"

namespace quire {

class SchedulerClaim {
 public:
  // Makes this scheduler the holder, for this epoch. Errors: those of Check. On an error the holder
  // does not change.
  absl::Status Ask(uint64_t scheduler_incarnation, uint64_t group_epoch, Instant now);

  // Checks that this scheduler may still begin this epoch. Errors: STALE_SCHEDULER if a newer
  // scheduler asked; STALE_GROUP if the same scheduler asked for a later epoch.
  absl::Status Check(uint64_t scheduler_incarnation, uint64_t group_epoch) const;

  // Notes that this scheduler is connected at `now`. Ignored for other schedulers than the holder.
  void Hear(uint64_t scheduler_incarnation, Instant now);

  // Incarnation of the holder; 0: no scheduler has asked yet.
  uint64_t scheduler_incarnation() const { return scheduler_incarnation_; }

  // Time since the worker last heard from the holder; 0 if there is no holder.
  int64_t SilenceNs(Instant now) const;

 private:
  uint64_t scheduler_incarnation_ = 0;
  uint64_t group_epoch_ = 0;
  Instant heard_at_ = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_SCHEDULER_CLAIM_H_
