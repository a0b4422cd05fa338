// Classifies the status with which a worker ended a call, or for which a rank was given up.
//
// Thread safety: free functions of their arguments.
#ifndef QUIRE_SCHEDULER_GROUP_WORKER_REFUSAL_H_
#define QUIRE_SCHEDULER_GROUP_WORKER_REFUSAL_H_

#include "absl/status/status.h"

namespace quire {

// Returns true for a broken connection: its status has no reason. A worker's refusal has one.
bool IsTransportError(const absl::Status& status);

// Returns the status with which a rank is lost whose connections kept breaking with `status`. A
// single answer of damaged bytes (kDataLoss) is asked for again. A worker that keeps sending
// damaged bytes has failed at the step, so kDataLoss becomes NONSENSE.
absl::Status CauseOfBreaks(const absl::Status& status);

// Returns true if a reachable worker will refuse again until an operator changes something.
bool IsMismatch(const absl::Status& status);

// Returns true if the step itself may have broken the worker: the worker stood still in the step,
// refused its contents, or gave an impossible answer. Returns false if ranks differ, since all had
// the same step, and if the worker refused the step for its sender or its order.
bool IsFailureAtStep(const absl::Status& status);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_WORKER_REFUSAL_H_
