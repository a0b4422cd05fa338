// SchedulerClaim is what a worker knows of the scheduler that has it: the newest one that asked,
// from the moment at which it asked, long before its epoch has begun. Schedulers that start
// together would otherwise end each other's meetings of ranks again and again.
//
// A standby takes over when the worker has heard nothing of the scheduler that has it for some
// time, so the worker counts that time.
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
  // The scheduler asks for the worker, to begin this epoch, and has it if that is no error. Errors:
  // as Check.
  absl::Status Ask(uint64_t scheduler_incarnation, uint64_t group_epoch, Instant now);

  // Whether nobody has asked since. Errors: STALE_SCHEDULER, when a newer scheduler has;
  // STALE_GROUP, when the same one has for a later epoch.
  absl::Status Check(uint64_t scheduler_incarnation, uint64_t group_epoch) const;

  // A scheduler is connected. Ignored unless it is the one that has the worker.
  void Hear(uint64_t scheduler_incarnation, Instant now);

  // 0: nobody has asked yet.
  uint64_t scheduler_incarnation() const { return scheduler_incarnation_; }

  // Since that scheduler was last heard of; 0 if nobody has asked.
  int64_t SilenceNs(Instant now) const;

 private:
  uint64_t scheduler_incarnation_ = 0;
  uint64_t group_epoch_ = 0;
  Instant heard_at_ = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_SCHEDULER_CLAIM_H_
