// WorkerClient is the loop's view of the worker group, however many ranks it has: plans go out,
// events come back through the inbox (GroupReady, StepReply, GroupLost). It connects and reconnects
// by itself, and it decides when a group is lost; every time it is through, it has begun a new
// group epoch and reports GroupReady.
//
// Thread safety: called by the loop thread only. No call blocks.
#ifndef QUIRE_SCHEDULER_LOOP_WORKER_CLIENT_H_
#define QUIRE_SCHEDULER_LOOP_WORKER_CLIENT_H_

#include <cstdint>

#include "common/step/step_plan.h"

namespace quire {

class WorkerClient {
 public:
  virtual ~WorkerClient() = default;

  // Sends the plan. A broken connection is mended, and the same bytes sent again, while the group's
  // lease lasts; a worker executes a step once however often it is asked.
  virtual void SendStep(const StepPlan& plan) = 0;

  // The loop has given this epoch up: nothing of it will be accepted any more. The client starts
  // over with the next epoch. Ignored when the client is past that epoch already.
  virtual void AbandonEpoch(uint64_t group_epoch) = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_WORKER_CLIENT_H_
