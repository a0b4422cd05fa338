#include "scheduler/group/worker_refusal.h"

#include <string>

#include "common/base/error.h"
#include "common/base/string_view.h"

namespace quire {

bool IsTransportError(const absl::Status& status) { return ReasonOf(status).empty(); }

absl::Status CauseOfBreaks(const absl::Status& status) {
  return absl::IsDataLoss(status)
             ? Error(absl::StatusCode::kInternal, "NONSENSE", ToStd(status.message()))
             : status;
}

bool IsMismatch(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return reason == "CONFIG_MISMATCH" || reason == "STEP_LIMITS" || reason == "NO_MEMORY" ||
         reason == "MEMORY" || reason == "PROTOCOL_VIOLATION";
}

bool IsFailureAtStep(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  if (reason == "STEP_TIMEOUT" || reason == "STEP_LIMIT") {
    return true;
  }
  // No step can make ranks differ, or make a worker return another digest than the plan's.
  const bool is_of_worker =
      !IsTransportError(status) && reason != "RANKS_DIFFER" && reason != "OTHER_PLAN";
  return is_of_worker && (absl::IsInternal(status) || absl::IsInvalidArgument(status));
}

}  // namespace quire
