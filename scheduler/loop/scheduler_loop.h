// SchedulerLoop is the one thread that owns the SchedulerCore. Each turn drains the inbox, plans a
// step, dispatches it to the workers and, while they compute, publishes the output of the previous
// step. Between turns the loop waits for the inbox and for nothing else.
//
//   inbox -> SchedulerCore -> StepPlan -> WorkerClient
//     ^                                        |
//     +---- GroupReady, StepReply, GroupLost --+        OutputRouter -> ResponseStream
//
// If the worker group is lost, or an answer does not fit its plan, the core queues each request
// again with its committed tokens. The next group continues the requests. If another scheduler has
// taken over the workers, the loop stands by. It ends every request with UNAVAILABLE SUPERSEDED, so
// that clients resume their requests at the other scheduler.
//
// Thread safety: Run and Turn from one thread. Other threads reach the loop only through the inbox.
// Invariants:    at most one step is unanswered; a stream gets only tokens that the core committed.
#ifndef QUIRE_SCHEDULER_LOOP_SCHEDULER_LOOP_H_
#define QUIRE_SCHEDULER_LOOP_SCHEDULER_LOOP_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

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
  // Longest wait for a worker group that gives tokens (WorkerWait). After this time, open requests
  // end with UNAVAILABLE, and new requests are refused until a group is ready. If several groups in
  // a row failed, new requests are refused until a group gives a token.
  int64_t worker_timeout_ns = 300 * kNanosPerSecond;
};

class SchedulerLoop {
 public:
  // The objects that the loop works with. REQUIRES: they outlive the loop.
  struct Parts {
    Inbox* inbox = nullptr;
    WorkerClient* workers = nullptr;
    ServingState* state = nullptr;
    LoopObserver* observer = nullptr;
    RecordedCore::Log step_log = {};  // default: no step log
    // Called in each turn that has cache events. Must not block. Null: the core keeps no cache
    // events.
    std::function<void(std::vector<CacheEvent>)> on_cache_events = nullptr;
    std::function<Instant()> clock = SteadyNow;
  };

  SchedulerLoop(const LoopConfig& config, Parts parts);

  // Runs turns until a Stop event. Open requests then end with UNAVAILABLE.
  void Run();

  // Runs one turn, which waits at most max_wait for an event. Returns false after a Stop event.
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
  void PublishCacheEvents();
  void PublishStats();
  void CheckTimers();
  // Publishes the ready group in ServingState, so that new requests are accepted.
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
  CoreStats stats_;  // last published stats
  SwapBytes swap_bytes_;
  int64_t block_bytes_ = 0;        // K and V of one block on one worker, last ready group
  StepLimits limits_;              // limits of the last ready group
  Instant now_ = 0;                // time at which this turn began
  std::optional<uint64_t> epoch_;  // epoch of the ready group; nullopt: no group is ready
  WorkerWait wait_;
  // Set by GiveUp. Cleared when a group is announced (Announce), and when this scheduler becomes a
  // standby or stops being one.
  bool has_given_up_ = false;
  // Set by GiveUp if several worker groups in a row failed. The next group is then announced
  // (Announce) only after it gives a token.
  bool needs_answer_ = false;
  // A ready group that will be announced when it gives its first token.
  std::optional<GroupReady> unproven_;
  Instant next_probe_ = 0;
  Instant next_loading_log_ = 0;
  std::optional<SentStep> sent_;             // the unanswered step; nullopt: none
  std::optional<absl::Status> refuse_with_;  // set by AbortAll: status for new requests
  bool stands_by_ = false;
  Instant next_stall_check_ = 0;
  // True if Publish has ended sequences while no step was unanswered. The next turn then plans
  // without waiting for an event.
  bool replan_ = false;
  bool stopping_ = false;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_SCHEDULER_LOOP_H_
