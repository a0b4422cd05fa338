// Classifies the status of a call that a worker ended, or of a rank that was given up.
//
// Thread safety: any thread; free functions without state.
#ifndef QUIRE_SCHEDULER_GROUP_WORKER_REFUSAL_H_
#define QUIRE_SCHEDULER_GROUP_WORKER_REFUSAL_H_

#include "absl/status/status.h"

namespace quire {

// Returns true if the connection broke. A worker that refuses a call sends a reason
// (common/base/error.h); the status of a broken connection has no reason.
bool IsTransportError(const absl::Status& status);

// Returns the status to report when a rank is lost because its connections kept breaking with
// `status`. If a single answer is damaged (kDataLoss), the step is sent again. A worker that keeps
// sending damaged answers has failed at the step, so kDataLoss becomes kInternal NONSENSE.
absl::Status CauseOfBreaks(const absl::Status& status);

// Returns true if a reachable worker will refuse again until an operator changes something.
bool IsMismatch(const absl::Status& status);

// Returns true if the step itself may have broken the worker: the worker stood still in the step,
// refused its contents, or gave an impossible answer. Returns false if ranks differ, since all
// ranks had the same step. Returns false also if the worker refused the step only because of its
// sender or step id.
bool IsFailureAtStep(const absl::Status& status);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_WORKER_REFUSAL_H_
