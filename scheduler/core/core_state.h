// CoreState is everything that the core remembers, and the transitions that touch more than one
// part of it. The planner and the output processor work on it; nobody outside this folder sees it.
//
// Thread safety: not thread-safe; owned by SchedulerCore.
// Invariants:    see invariants.h.
#ifndef QUIRE_SCHEDULER_CORE_CORE_STATE_H_
#define QUIRE_SCHEDULER_CORE_CORE_STATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/step/step_limits.h"
#include "common/step/step_plan.h"
#include "scheduler/core/completion_estimate.h"
#include "scheduler/core/core_config.h"
#include "scheduler/core/core_stats.h"
#include "scheduler/core/crash_suspects.h"
#include "scheduler/core/deadlines.h"
#include "scheduler/core/handle_pool.h"
#include "scheduler/core/output_event.h"
#include "scheduler/core/pinned_prefixes.h"
#include "scheduler/core/preemption_cost.h"
#include "scheduler/core/reserved_blocks.h"
#include "scheduler/core/scheduling_policy.h"
#include "scheduler/core/sequence_group.h"
#include "scheduler/core/waiting_queue.h"
#include "scheduler/kv_cache/kv_cache_manager.h"

namespace quire {

// One membership of a worker group, and all that means something only inside it. It is made empty
// and dropped as a whole.
struct Epoch {
  Epoch(uint64_t incarnation, uint64_t epoch_number, const StepLimits& step_limits);

  uint64_t scheduler_incarnation;
  uint64_t group_epoch;
  uint64_t last_step_id = 0;
  StepLimits limits;
  KvCacheManager kv_cache;
  HandlePool handles;
  PreemptionCost preemption_cost;
  bool had_suspect = false;                       // who ran ahead of its turn
  std::optional<ScheduleRank> owed_introduction;  // see introduction_budget.h
};

// The plan that was handed out and not answered yet, as far as the answer needs it.
struct UnansweredStep {
  struct Slice {
    SequenceGroup* group;
    Sequence* sequence;
    SequenceHandle handle;
    int32_t num_tokens;
    int32_t num_recomputed;  // of them: were computed before, and lost
    bool samples;            // reaches the last known token, so the answer has a row for it
  };

  bool is_active = false;
  StepHeader header;
  uint64_t plan_digest = 0;
  std::vector<Slice> slices;
  size_t num_sampled = 0;
  int64_t num_tokens = 0;  // of the plan
  // Orders of the plan while it is made.
  std::vector<BlockSwapOut> swap_outs;
  std::vector<BlockSwapIn> swap_ins;
  std::vector<BlockCopy> copies;
  // Scratch of NameNextBlocks: slices that take a block in the next step, and those blocks.
  std::vector<size_t> growing;
  std::vector<BlockId> next_blocks;
  // Groups that ended meanwhile; the slices still point at them.
  std::vector<std::unique_ptr<SequenceGroup>> departed;

  // Keeps the memory for the next step.
  void Clear();
};

struct CoreState {
  explicit CoreState(const CoreConfig& core_config)
      : config(core_config), policy(MakeSchedulingPolicy(config)), waiting(policy.get()) {}
  CoreState(const CoreState&) = delete;
  CoreState& operator=(const CoreState&) = delete;

  CoreConfig config;
  std::optional<StepLimits> last_limits;  // of the present or the last epoch
  std::optional<Epoch> epoch;
  std::map<RequestId, std::unique_ptr<SequenceGroup>> groups;  // live
  std::vector<SequenceGroup*> running;                         // by rank: the first is served first
  std::vector<SequenceGroup*> swapped;                         // likewise
  std::unique_ptr<SchedulingPolicy> policy;
  WaitingQueue waiting;
  Deadlines deadlines;
  CompletionEstimate completion;
  Instant now = 0;  // as the caller said last
  PinnedPrefixes prefixes;
  CrashSuspects suspects;
  std::vector<LostSlice> lost_slices;   // of the last epoch, until its loss is judged
  std::set<RequestId> poison_prefixes;  // that ended for crashes; few, for an operator pins them
  ReservedBlocks reserved_blocks;       // for prefixes, under last_limits: gone for requests
  UnansweredStep step;
  std::vector<OutputEvent> events;
  CoreStats counters;              // the fields "since the start"; block operations: of past epochs
  std::vector<RequestId> started;  // whose first slice is in the last plan
  std::optional<RequestId> last_request_id;

  // nullptr when unknown or finished.
  SequenceGroup* Find(RequestId id);

  // What a request has to itself: the limits, with the blocks that others do not hold for good.
  // REQUIRES: workers were ready before.
  StepLimits LimitsFor(const Request& request) const;

  // What the present epoch did with blocks. REQUIRES: an epoch.
  void AddBlockOperations(CoreStats* stats) const;

  // A new group waits.
  SequenceGroup& Add(Request request);

  // The first waiting group runs from now on, each sequence under a handle.
  // REQUIRES: an epoch, and handles for all its live sequences.
  SequenceGroup& StartFirstWaiting();

  // The suspect that is to be computed alone, before everybody else; nullptr when nobody is.
  SequenceGroup* NextSuspect();

  // A waiting group runs ahead of its turn. REQUIRES: as StartFirstWaiting; it has a rank.
  void StartAhead(SequenceGroup& group);

  // A running group gives back blocks and handles and waits for recomputation, in its place.
  void ReturnToWaiting(SequenceGroup& group);

  // A running group goes to host memory in the step that is being planned. False, and nothing has
  // changed, when it does not fit there or has computed nothing. REQUIRES: it has no slice.
  bool SwapOut(SequenceGroup& group);

  // Blocks that a swapped group needs to come back and to compute what it knows. Counted when it is
  // asked for first, in O(blocks log blocks).
  int32_t NumBlocksToResume(SequenceGroup& group) const;

  // Who is next of those that do not run; nullptr when all run.
  SequenceGroup* Next() const;

  // A swapped group comes back in the step that is being planned and runs. False, and nothing has
  // changed, without blocks. REQUIRES: handles for all its live sequences.
  bool SwapIn(SequenceGroup& group);

  // When the leader has computed the prompt, the sequences that wait for it share its blocks, but
  // for the last token, whose logits each of them needs. REQUIRES: the leader's window has not slid
  // since its slice was answered.
  void ForkFrom(SequenceGroup& group, const Sequence& sequence);

  // Ends one sequence: its blocks and its handle are given back, the event is out. The group leaves
  // with its last sequence, and dies then unless a step is unanswered. REQUIRES: not finished.
  void FinishSequence(SequenceGroup& group, Sequence& sequence, FinishReason reason);

  // Ends the whole group, whose answer are these hypotheses; sequences without one end for
  // reason_without. REQUIRES: a group of beam search.
  void FinishBeamSearch(SequenceGroup& group,
                        std::span<const BeamHypothesis> hypotheses,
                        FinishReason reason_without);

  // Ends every live sequence of the group.
  void FinishGroup(SequenceGroup& group, FinishReason reason);

  // Drops the epoch and the unanswered step; every running group waits again. What was in the step
  // is kept until JudgeLoss.
  void LoseWorkers();

  // Whether the workers crashed that were lost last. Who was in their step may have done it, and
  // ends with kWorkerCrash when it did so too often. REQUIRES: no epoch.
  void JudgeLoss(bool was_crash);

 private:
  void Start(SequenceGroup& group);
  std::vector<LostSlice> LostSlices() const;
  void End(Sequence& sequence);
  void GiveBack(Sequence& sequence);
  void GiveBackHandle(const Sequence& sequence);
  void Depart(SequenceGroup& group, SequenceState last_state);
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_CORE_STATE_H_
