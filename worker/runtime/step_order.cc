#include "worker/runtime/step_order.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

// Returns an error with the metadata {key: value}. `value` is the current incarnation, the current
// epoch, or the last step done.
absl::Status Refusal(absl::StatusCode code,
                     std::string_view reason,
                     std::string_view message,
                     std::string_view key,
                     uint64_t value) {
  return WithMetadata(Error(code, reason, message), key, absl::StrCat(value));
}

}  // namespace

absl::Status StaleGroup(uint64_t current_group_epoch) {
  return Refusal(
      absl::StatusCode::kFailedPrecondition,
      "STALE_GROUP",
      absl::StrCat("group_epoch: is not the current epoch (current ", current_group_epoch, ")"),
      "group_epoch",
      current_group_epoch);
}

absl::Status CheckIncarnation(uint64_t scheduler_incarnation, uint64_t newest_incarnation) {
  if (scheduler_incarnation >= newest_incarnation) {
    return absl::OkStatus();
  }
  return Refusal(absl::StatusCode::kFailedPrecondition,
                 "STALE_SCHEDULER",
                 absl::StrCat("scheduler_incarnation: a newer scheduler has taken over (got ",
                              scheduler_incarnation,
                              ", current ",
                              newest_incarnation,
                              ")"),
                 "scheduler_incarnation",
                 newest_incarnation);
}

absl::Status StepOrder::CheckEpoch(uint64_t scheduler_incarnation, uint64_t group_epoch) const {
  QUIRE_RETURN_IF_ERROR(CheckIncarnation(scheduler_incarnation, scheduler_incarnation_));
  bool is_old =
      in_epoch_ && scheduler_incarnation == scheduler_incarnation_ && group_epoch <= group_epoch_;
  return is_old ? StaleGroup(group_epoch_) : absl::OkStatus();
}

void StepOrder::BeginEpoch(uint64_t scheduler_incarnation, uint64_t group_epoch) {
  QUIRE_CHECK(CheckEpoch(scheduler_incarnation, group_epoch).ok());
  in_epoch_ = true;
  has_left_ = false;
  scheduler_incarnation_ = scheduler_incarnation;
  group_epoch_ = group_epoch;
  last_done_ = 0;
  last_result_ = {};
}

absl::StatusOr<StepOrder::Verdict> StepOrder::Classify(const StepHeader& header,
                                                       uint64_t digest) const {
  QUIRE_RETURN_IF_ERROR(CheckIncarnation(header.scheduler_incarnation, scheduler_incarnation_));
  if (!in_epoch_ || has_left_ || header.scheduler_incarnation != scheduler_incarnation_ ||
      header.group_epoch != group_epoch_) {
    return StaleGroup(group_epoch_);
  }
  if (header.step_id == last_done_ + 1) {
    return Verdict::kExecute;
  }
  if (header.step_id != last_done_ || last_done_ == 0) {
    return Refusal(
        absl::StatusCode::kOutOfRange,
        "STEP_GAP",
        absl::StrCat(
            "step_id: not the next step (got ", header.step_id, ", last done ", last_done_, ")"),
        "last_done",
        last_done_);
  }
  if (digest != last_result_.plan_digest) {
    return Refusal(
        absl::StatusCode::kInternal,
        "PROTOCOL_VIOLATION",
        absl::StrCat("plan_digest: step ", header.step_id, " was done with another plan"),
        "last_done",
        last_done_);
  }
  return Verdict::kReplay;
}

void StepOrder::Complete(StepResult result) {
  QUIRE_CHECK_EQ(result.header.step_id, last_done_ + 1);
  last_done_ = result.header.step_id;
  last_result_ = std::move(result);
}

}  // namespace quire
