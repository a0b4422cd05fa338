// SchedulerLoop is the one thread that owns the SchedulerCore. Each turn drains the inbox, plans,
// dispatches to the workers and, while they compute, publishes the output of the step before. Then
// it waits for the inbox, and for the inbox only.
//
//   inbox -> SchedulerCore -> StepPlan -> WorkerClient
//     ^                                        |
//     +---- GroupReady, StepReply, GroupLost --+        OutputRouter -> ResponseStream
//
// If the group is lost, or its answer does not fit its plan, every request stays: the core returns
// it to waiting with its committed tokens, and it goes on under the next epoch. If another
// scheduler has taken over the workers, the loop stands by: every request ends with UNAVAILABLE
// SUPERSEDED, so that its client goes on with it there.
//
// Thread safety: Run and Turn from one thread. Everything else talks through the inbox.
// Invariants:    at most one step is unanswered; a stream hears of a token only after its commit.
#ifndef QUIRE_SCHEDULER_LOOP_SCHEDULER_LOOP_H_
#define QUIRE_SCHEDULER_LOOP_SCHEDULER_LOOP_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/base/clock.h"
#include "common/step/step_limits.h"
#include "common/step/step_plan.h"
#include "scheduler/loop/inbox.h"
#include "scheduler/loop/loop_observer.h"
#include "scheduler/loop/output_router.h"
#include "scheduler/loop/prefix_calls.h"
#include "scheduler/loop/serving_state.h"
#include "scheduler/loop/state_calls.h"
#include "scheduler/loop/turn_watch.h"
#include "scheduler/loop/worker_client.h"
#include "scheduler/loop/worker_wait.h"
#include "scheduler/step_log/recorded_core.h"

namespace quire {

struct LoopConfig {
  CoreConfig core;
  int64_t slow_consumer_ns = 30 * kNanosPerSecond;
  // Bounds the wait for a worker group that gives tokens (WorkerWait). Then requests end with
  // UNAVAILABLE, and new ones are refused until a group is ready or, if groups failed, until one
  // gives a token.
  int64_t worker_timeout_ns = 300 * kNanosPerSecond;
};

class SchedulerLoop {
 public:
  // REQUIRES: the objects outlive the loop.
  struct Parts {
    Inbox* inbox = nullptr;
    WorkerClient* workers = nullptr;
    ServingState* state = nullptr;
    LoopObserver* observer = nullptr;
    RecordedCore::Log step_log = {};  // none unless given
    std::function<Instant()> clock = SteadyNow;
  };

  SchedulerLoop(const LoopConfig& config, Parts parts);

  // Turns until a Stop event. Open requests then end with UNAVAILABLE.
  void Run();

  // One turn, waiting at most max_wait for an event. Returns false after a Stop event.
  bool Turn(absl::Duration max_wait);

 private:
  struct SentStep {
    StepHeader header;
    Instant sent_at = 0;
    StepObservation observation;
  };

  void Handle(AddRequest& add);
  void Handle(AbortRequest& abort);
  void Handle(AbortAll& abort);
  void Handle(PinCall& call);
  void Handle(UnpinCall& call);
  void Handle(ListPrefixesCall& call);
  void Handle(GetStateCall& call);
  void Handle(GroupReady& ready);
  void Handle(StepReply& reply);
  void Handle(StaleReply& reply);
  void Handle(GroupLoading& loading);
  void Handle(GroupLost& lost);
  void Handle(GroupStandby& standby);
  void Handle(Stop& stop);

  void Work(std::deque<LoopEvent>& events);
  void Dispatch();
  void Publish();
  void PublishStats();
  void CheckTimers();
  // Publishes that the group takes requests.
  void Announce(const GroupReady& ready);
  void GiveUp();
  void Probe();
  void Abort(RequestId id, const absl::Status& status);
  void AbortRequests(const absl::Status& status);
  void FenceGroup(const absl::Status& cause);
  absl::Duration TimeToWait(absl::Duration max_wait) const;

  const LoopConfig config_;
  const Parts parts_;
  RecordedCore core_;
  TurnWatch watch_;
  OutputRouter router_;
  PrefixCalls prefix_calls_;
  StateCalls state_calls_;
  StepTotals step_totals_;
  CoreStats stats_;  // as published last
  SwapBytes swap_bytes_;
  int64_t block_bytes_ = 0;        // of the last ready group
  StepLimits limits_;              // of the last ready group
  Instant now_ = 0;                // of this turn
  std::optional<uint64_t> epoch_;  // of the group that is ready
  WorkerWait wait_;
  bool has_given_up_ = false;           // until a group is announced
  bool needs_answer_ = false;           // groups failed: none is announced before it gives a token
  std::optional<GroupReady> unproven_;  // ready, but not announced yet
  Instant next_probe_ = 0;
  Instant next_loading_log_ = 0;
  std::optional<SentStep> sent_;             // the unanswered step
  std::optional<absl::Status> refuse_with_;  // after AbortAll
  bool stands_by_ = false;
  Instant next_stall_check_ = 0;
  bool replan_ = false;  // publishing ended sequences while no step was out
  bool stopping_ = false;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_SCHEDULER_LOOP_H_
