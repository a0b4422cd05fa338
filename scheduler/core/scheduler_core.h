// SchedulerCore decides what every step computes. It is a state machine: events in, one StepPlan
// out, its StepResult back in. No thread, clock, socket, random device or protocol type inside; the
// server, the simulator, the tests and the fuzzers drive this same object.
//
// The caller's duties, in this order:
//   1. BeginEpoch once workers are ready. Until then, and after OnWorkersLost, requests queue and
//      PlanStep returns nothing.
//   2. Plan: PlanStep(now). Nothing means that there is nothing to do. At most one plan may be
//      unanswered.
//   3. Send the plan to every rank; hand their merged answer to ApplyStepResult. An error there
//      means that the answer does not fit the plan: nothing was changed; fence the group,
//      OnWorkersLost.
//   4. TakeEvents after any call, and publish them in order.
// AddRequest, AbortRequest and FinishSequence may be called at any time, also while a step runs:
// blocks of a sequence that ends while its step runs stay pending until the step is answered.
//
// Thread safety: not thread-safe; owned by the scheduler loop.
// Invariants:    CheckInvariants lists and checks them.
// Cost:          PlanStep and ApplyStepResult are O(sequences in the step) and allocate nothing
//                per sequence in a steady decode.
// Source:        PagedAttention, Kwon et al. 2023, sections 4.2, 4.3, 4.5; the gap-closing
//                formulation (no prefill or decode phase) is vLLM v1's; the shape is etcd raft's.
#ifndef QUIRE_SCHEDULER_CORE_SCHEDULER_CORE_H_
#define QUIRE_SCHEDULER_CORE_SCHEDULER_CORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/step/step_limits.h"
#include "common/step/step_plan.h"
#include "common/step/step_result.h"
#include "scheduler/core/block_map.h"
#include "scheduler/core/core_config.h"
#include "scheduler/core/core_stats.h"
#include "scheduler/core/output_event.h"
#include "scheduler/core/prefix_info.h"
#include "scheduler/core/request.h"

namespace quire {

struct CoreState;

enum class AddOutcome : uint8_t {
  kQueued,
  kQueueFull,            // max_queued_requests, or max_resumed_requests of resumed ones
  kQueueTokensFull,      // max_queued_tokens, or more than resumed ones may bring
  kTenantFull,           // its tenant's share of either: see WaitingQueue
  kDeadlineUnreachable,  // cannot be complete in time, as far as is known
  kTooLong,              // the prompt leaves no room for a token within max_model_len
  kNeverFits,  // prompt + max_tokens of all its sequences exceed the pool beside prefixes;
               // of a resumed request also max_model_len
};

class SchedulerCore {
 public:
  explicit SchedulerCore(const CoreConfig& config);
  ~SchedulerCore();
  SchedulerCore(const SchedulerCore&) = delete;
  SchedulerCore& operator=(const SchedulerCore&) = delete;

  // A worker group is ready under a new epoch, with an empty pool. Requests that can no longer come
  // to their full length finish with kNoCapacity. `after_crash`: a request may have caused the loss
  // of the workers before: a process of theirs died, stood still in the step, or failed at the step
  // itself. What they were computing is remembered then (crash_suspects.h), and a request that
  // crashed them kMaxCrashes times ends with kWorkerCrash. REQUIRES: no epoch is active; limits are
  // positive.
  void BeginEpoch(uint64_t scheduler_incarnation,
                  uint64_t group_epoch,
                  const StepLimits& limits,
                  bool after_crash = false);

  // The group is gone: every running sequence goes back to waiting, ahead of newer requests, with
  // its committed tokens. Nothing else is lost. The unanswered plan, if any, is forgotten.
  void OnWorkersLost();

  // REQUIRES: request.id is greater than every id before; prompt not empty; max_tokens >= 1;
  // num_sequences >= 1; IsResumable; CheckBeamSearchParams accepts its beam search, and its
  // sampling is greedy with num_candidates() logprobs then. A new request whose prompt + max_tokens
  // is longer than max_model_len ends with kLength when that context is full: its length is decided
  // here, by the limits of the present or the last epoch, or by the first ones that come. Before
  // the first epoch only the queue bounds are checked.
  AddOutcome AddRequest(Request request);

  // Ends every sequence of the request with kAborted. False when it is unknown or finished.
  bool AbortRequest(RequestId id);

  // Ends one sequence with kStop: a stop string was found in its text. Tokens that it commits in a
  // running step are dropped. False when it is unknown, finished or of beam search, whose sequences
  // are not known before its end.
  bool FinishSequence(RequestId id, int32_t sequence_index);

  // Computes the blocks of a prefix and holds them: see pinned_prefixes.h. It is pinned when
  // FindPrefix says so; the same tokens and salt again give the prefix that is there. REQUIRES: id
  // is greater than every id before; tokens of the model, at least one.
  PinResult PinPrefix(RequestId id, std::vector<TokenId> token_ids, std::string cache_salt);

  // False when there is no such prefix. What shares its blocks keeps them.
  bool UnpinPrefix(RequestId id);

  // Nothing when there is no such prefix: unpinned, or its logits were not finite, twice, or it
  // crashed its workers.
  std::optional<PrefixInfo> FindPrefix(RequestId id) const;
  // Whether the prefix is gone because it crashed its workers kMaxCrashes times.
  bool IsPoisonPrefix(RequestId id) const;
  std::vector<PrefixInfo> prefixes() const;  // oldest first

  // Ends what expired, then gives out the step's token budget: running sequences first, oldest
  // first, then waiting ones; all of it to a suspect of crashes, while there is one. Preempts the
  // newest when blocks run out, and admits nothing in a step that preempted. REQUIRES: no plan is
  // unanswered. Handles of sequences that ended ride along; a plan of releases alone comes only
  // when a waiting request needs those handles.
  std::optional<StepPlan> PlanStep(Instant now);

  // Ends what expired (deadline <= now). PlanStep begins with it; at any other time it is for a
  // step that takes long and for times without workers.
  void ExpireRequests(Instant now);

  // Commits the sampled tokens of the unanswered plan. Errors: kInvalidArgument when the result is
  // not one of this plan (header, digest, handles, token range); nothing is changed then.
  absl::Status ApplyStepResult(const StepResult& result);

  // What happened since the last call, in order.
  std::vector<OutputEvent> TakeEvents();

  // Requests that the last PlanStep gave their first slice; pinned prefixes too. May have ended.
  const std::vector<RequestId>& started() const;
  bool has_unanswered_plan() const;
  // True when PlanStep could return a plan.
  bool has_work() const;
  // The earliest deadline of any live request; kInfiniteFuture when none has one.
  Instant next_deadline() const;
  CoreStats stats() const;
  // See block_map.h; its counts are those of stats(). REQUIRES: as MakeBlockMap.
  BlockMap block_map(const BlockMapLimits& limits) const;

  // Checks every invariant against the state, aborts with the broken one. O(state): for tests,
  // simulation and debug builds.
  void CheckInvariants() const;

 private:
  std::unique_ptr<CoreState> state_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_SCHEDULER_CORE_H_
