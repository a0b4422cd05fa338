// Classifies the status with which a worker ended a call, or for which a rank was given up.
//
// Thread safety: free functions of their arguments.
#ifndef QUIRE_SCHEDULER_GROUP_WORKER_REFUSAL_H_
#define QUIRE_SCHEDULER_GROUP_WORKER_REFUSAL_H_

#include "absl/status/status.h"

namespace quire {

// Returns true for a broken connection: its status has no reason. A worker's refusal has one.
bool IsTransportError(const absl::Status& status);

// Returns the status with which to give up a rank whose connections kept breaking with `status`.
// Damaged bytes (kDataLoss) are asked for again; a worker that keeps sending nonsense has failed at
// the step, so kDataLoss becomes NONSENSE.
absl::Status CauseOfBreaks(const absl::Status& status);

// Returns true if a reachable worker will refuse again until somebody changes something.
bool IsMismatch(const absl::Status& status);

// Returns true if the step itself may have broken the worker: it stood still in the step, refused
// its contents, or gave an impossible answer. False if ranks differ, since they had the same step,
// and for refusals about the step's sender or order.
bool IsFailureAtStep(const absl::Status& status);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_WORKER_REFUSAL_H_
