// WorkerClient is the loop's view of the worker group, however many ranks it has: plans go out,
// events come back through the inbox (GroupReady, StepReply, GroupLost). The client connects and
// reconnects without being told, and decides when a group is lost. Each time it has connected to
// all ranks, it begins a new epoch, which lasts until the group is lost, and reports GroupReady.
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

  // Sends the plan. If a connection breaks, the client reconnects and sends the same bytes again;
  // if this takes longer than GroupTiming::lease_ns, the group is lost. A worker executes a step
  // only once, even if it receives the plan twice.
  virtual void SendStep(const StepPlan& plan) = 0;

  // Tells the client that the loop has given up this epoch and ignores the epoch's later events.
  // The client then begins the next epoch. Has no effect if the client has already left this epoch.
  virtual void AbandonEpoch(uint64_t group_epoch) = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_WORKER_CLIENT_H_
