// What follows from the status with which a worker ended a call, or for which a rank was given up.
//
// Thread safety: free functions of their arguments.
#ifndef QUIRE_SCHEDULER_GROUP_WORKER_REFUSAL_H_
#define QUIRE_SCHEDULER_GROUP_WORKER_REFUSAL_H_

#include "absl/status/status.h"

namespace quire {

// A connection that broke: it has no reason. A worker that refuses something gives one.
bool IsTransportError(const absl::Status& status);

// For which a rank is given up whose connections all broke with this status. Bytes may be damaged
// on their way, and are asked for again; a worker that goes on to answer with nonsense (kDataLoss)
// has failed at the step.
absl::Status CauseOfBreaks(const absl::Status& status);

// The worker is there, and asking it again does not help until somebody changes something.
bool IsMismatch(const absl::Status& status);

// The step itself may have been too much for the worker: it stood still in it, refused it for what
// is in it, or answered otherwise than can be. Not so when ranks differ, since they had the same
// step; other refusals are about whose step it is and which.
bool IsFailureAtStep(const absl::Status& status);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_WORKER_REFUSAL_H_
