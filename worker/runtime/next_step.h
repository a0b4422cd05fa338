// PredictNextStep predicts the next step of a steady decode: every sequence of the last step
// decodes one more token, in the same order. A worker with a GPU uploads the inputs of a predicted
// step while it waits for the scheduler. If the scheduler then plans that step, the step starts at
// once. A wrong prediction costs the time to make it, in which the worker would mostly wait.
//
// Thread safety: free functions over their arguments; no other thread may change these meanwhile.
// Cost:          O(slices).
#ifndef QUIRE_WORKER_RUNTIME_NEXT_STEP_H_
#define QUIRE_WORKER_RUNTIME_NEXT_STEP_H_

#include <vector>

#include "common/step/step_limits.h"
#include "common/step/step_plan.h"
#include "worker/runtime/batch_builder.h"

namespace quire {

// Returns the slices of the step that probably follows `plan`. Returns none if a sequence lacks K
// and V of several tokens, was released, or needs a block whose id the plan does not predict. Also
// returns none if the plan forces tokens: a beam search would force the next ones, too. slices: the
// slices of `plan`, in order. REQUIRES: the plan's sampled tokens are appended to their sequences,
// and its releases are done.
std::vector<ScheduledSlice> PredictNextStep(const StepPlan& plan,
                                            const std::vector<ScheduledSlice>& slices,
                                            const SequenceTable& sequences,
                                            const StepLimits& limits);

// Returns whether the slices of `plan` are the predicted ones. REQUIRES: StepPlanChecker accepts
// the plan; no sequence has changed since the prediction.
bool IsPredicted(const StepPlan& plan, const std::vector<ScheduledSlice>& predicted);

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_NEXT_STEP_H_
