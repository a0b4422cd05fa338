#include "worker/runtime/scheduler_claim.h"

#include "common/base/status_macros.h"
#include "worker/runtime/step_order.h"

namespace quire {

absl::Status SchedulerClaim::Ask(uint64_t scheduler_incarnation,
                                 uint64_t group_epoch,
                                 Instant now) {
  QUIRE_RETURN_IF_ERROR(Check(scheduler_incarnation, group_epoch));
  scheduler_incarnation_ = scheduler_incarnation;
  group_epoch_ = group_epoch;
  heard_at_ = now;
  return absl::OkStatus();
}

absl::Status SchedulerClaim::Check(uint64_t scheduler_incarnation, uint64_t group_epoch) const {
  QUIRE_RETURN_IF_ERROR(CheckIncarnation(scheduler_incarnation, scheduler_incarnation_));
  const bool is_old = scheduler_incarnation == scheduler_incarnation_ && group_epoch < group_epoch_;
  return is_old ? StaleGroup(group_epoch_) : absl::OkStatus();
}

void SchedulerClaim::Hear(uint64_t scheduler_incarnation, Instant now) {
  if (scheduler_incarnation == scheduler_incarnation_) {
    heard_at_ = now;
  }
}

int64_t SchedulerClaim::SilenceNs(Instant now) const {
  return scheduler_incarnation_ == 0 ? 0 : now - heard_at_;
}

}  // namespace quire
