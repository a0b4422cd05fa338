// StepOrder decides whether a step is executed, answered with the kept result of the last step, or
// refused. So steps are idempotent and strictly ordered inside one (scheduler incarnation, group
// epoch).
//
// The rules, in this order:
//   an older scheduler incarnation           FAILED_PRECONDITION STALE_SCHEDULER{incarnation}
//   another group epoch, or no epoch now     FAILED_PRECONDITION STALE_GROUP{group_epoch}
//   the last step again, same digest         replay: the kept result is sent again
//   the last step again, other digest        INTERNAL PROTOCOL_VIOLATION
//   the step after the last one              execute
//   any other                                OUT_OF_RANGE STEP_GAP{last_done}
// Steps of a newer incarnation are STALE_GROUP until that incarnation begins an epoch.
//
// Thread safety: one caller at a time (the executor thread).
#ifndef QUIRE_WORKER_RUNTIME_STEP_ORDER_H_
#define QUIRE_WORKER_RUNTIME_STEP_ORDER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/step/step_plan.h"
#include "common/step/step_result.h"

namespace quire {

// Checks that scheduler_incarnation >= newest_incarnation. Errors: STALE_SCHEDULER.
absl::Status CheckIncarnation(uint64_t scheduler_incarnation, uint64_t newest_incarnation);

class StepOrder {
 public:
  enum class Verdict : uint8_t { kExecute, kReplay };

  // Checks that this epoch may begin. Errors: STALE_SCHEDULER if a newer scheduler has begun an
  // epoch; STALE_GROUP if the same scheduler has begun this epoch or a later one.
  absl::Status CheckEpoch(uint64_t scheduler_incarnation, uint64_t group_epoch) const;

  // Begins the epoch; its first step is 1. REQUIRES: CheckEpoch is OK.
  void BeginEpoch(uint64_t scheduler_incarnation, uint64_t group_epoch);

  // Refuses all further steps of this epoch, repeated ones included.
  void LeaveEpoch() { has_left_ = true; }

  absl::StatusOr<Verdict> Classify(const StepHeader& header, uint64_t digest) const;

  // Keeps the result of a step. REQUIRES: Classify said kExecute for the step's header.
  void Complete(StepResult result);

  // REQUIRES: Classify said kReplay.
  const StepResult& last_result() const { return last_result_; }

  uint64_t scheduler_incarnation() const { return scheduler_incarnation_; }
  uint64_t group_epoch() const { return group_epoch_; }
  uint64_t last_done() const { return last_done_; }

 private:
  bool in_epoch_ = false;
  bool has_left_ = false;
  uint64_t scheduler_incarnation_ = 0;  // highest incarnation that began an epoch
  uint64_t group_epoch_ = 0;
  uint64_t last_done_ = 0;  // 0: no step of this epoch is done
  StepResult last_result_;
};

// Returns the status that refuses a step of another epoch.
absl::Status StaleGroup(uint64_t current_group_epoch);

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_STEP_ORDER_H_
