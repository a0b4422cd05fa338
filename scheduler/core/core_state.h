// CoreState holds everything that the core remembers, and the transitions that touch several parts
// of it. The planner and the output processor work on a CoreState. No other folder uses CoreState.
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

// The state of one epoch. It starts empty when the worker group is ready, and is dropped as a whole
// when the worker group is lost.
struct Epoch {
  Epoch(uint64_t incarnation, uint64_t epoch_number, const StepLimits& step_limits);

  uint64_t scheduler_incarnation;
  uint64_t group_epoch;
  uint64_t last_step_id = 0;
  StepLimits limits;
  KvCacheManager kv_cache;
  HandlePool handles;
  PreemptionCost preemption_cost;
  bool had_suspect = false;                       // a crash suspect ran ahead of its turn
  std::optional<ScheduleRank> owed_introduction;  // rank of the owed group (introduction_budget.h)
};

// The parts of the unanswered plan that are needed to apply its answer.
struct UnansweredStep {
  struct Slice {
    SequenceGroup* group;
    Sequence* sequence;
    SequenceHandle handle;
    int32_t num_tokens;
    int32_t num_recomputed;  // part of num_tokens that was computed before and lost
    int32_t first_scored;    // position of the first prompt token that the slice scores
    int32_t num_scored;      // prompt tokens whose log-probabilities the answer has
    bool samples;            // the slice has the last known token, so the answer has the next token
  };

  bool is_active = false;
  StepHeader header;
  uint64_t plan_digest = 0;
  std::vector<Slice> slices;
  size_t num_sampled = 0;
  int64_t num_tokens = 0;  // tokens of the plan
  // Swap and copy orders of the plan.
  std::vector<BlockSwapOut> swap_outs;
  std::vector<BlockSwapIn> swap_ins;
  std::vector<BlockCopy> copies;
  // Scratch memory of NameNextBlocks.
  std::vector<size_t> growing;  // indices of slices whose sequence takes a block next step
  std::vector<BlockId>
      next_blocks;  // the predicted blocks, in the order of `growing`; null block: unknown
  // Groups that ended during the step, kept because slices still point at these groups.
  std::vector<std::unique_ptr<SequenceGroup>> departed;

  // Empties the step, but keeps its memory for the next one.
  void Clear();
};

struct CoreState {
  explicit CoreState(const CoreConfig& core_config)
      : config(core_config), policy(MakeSchedulingPolicy(config)), waiting(policy.get()) {}
  CoreState(const CoreState&) = delete;
  CoreState& operator=(const CoreState&) = delete;

  CoreConfig config;
  std::optional<StepLimits> last_limits;  // limits of the current epoch, or else of the last one
  std::optional<Epoch> epoch;
  std::map<RequestId, std::unique_ptr<SequenceGroup>> groups;  // all live groups
  std::vector<SequenceGroup*> running;                         // in order of service
  std::vector<SequenceGroup*> swapped;                         // in order of service
  std::unique_ptr<SchedulingPolicy> policy;
  WaitingQueue waiting;
  Deadlines deadlines;
  CompletionEstimate completion;
  Instant now = 0;  // the time that was passed to the last PlanStep or ExpireRequests
  PinnedPrefixes prefixes;
  CrashSuspects suspects;
  std::vector<LostSlice> lost_slices;  // slices of the lost step, kept until JudgeLoss
  // Prefixes that ended because they crashed their workers. Never pruned, because operators pin few
  // prefixes.
  std::set<RequestId> poison_prefixes;
  // The blocks that pinned prefixes need under last_limits. A request must fit the pool beside
  // these blocks.
  ReservedBlocks reserved_blocks;
  UnansweredStep step;
  std::vector<OutputEvent> events;
  // Only the fields that count events since the start are used. The counts of block operations do
  // not include the present epoch.
  CoreStats counters;
  bool keeps_cache_events = false;
  bool has_lost_cache = false;     // the next TakeCacheEvents must begin with kCleared
  std::vector<RequestId> started;  // requests whose first slice is in the last plan
  std::optional<RequestId> last_request_id;

  // Returns nullptr if the request is unknown or finished.
  SequenceGroup* Find(RequestId id);

  // Returns last_limits, with num_blocks reduced by the blocks that are reserved for prefixes. For
  // the request that computes a prefix, blocks that only this prefix needs are not subtracted.
  // REQUIRES: workers were ready before.
  StepLimits LimitsFor(const Request& request) const;

  // Adds the block operations of the present epoch to *stats. REQUIRES: an epoch is active.
  void AddBlockOperations(CoreStats* stats) const;

  // Adds a new group to the waiting queue.
  SequenceGroup& Add(Request request);

  // Starts the first waiting group, and gives each live sequence a handle. REQUIRES: an epoch is
  // active; handles are free for all live sequences of the group.
  SequenceGroup& StartFirstWaiting();

  // Returns the crash suspect that must be computed next, alone; nullptr if there is none.
  SequenceGroup* NextSuspect();

  // Starts a waiting group ahead of its turn. REQUIRES: an epoch is active; handles are free for
  // all live sequences of the group; the group has a rank.
  void StartAhead(SequenceGroup& group);

  // Frees the blocks and handles of a running group, and puts the group into the waiting queue at
  // its rank. The group will be recomputed.
  void ReturnToWaiting(SequenceGroup& group);

  // Moves a running group to host memory in the step that is being planned. Returns false, without
  // a change, if host memory has no room for the group or the group holds no block. REQUIRES: the
  // group has no slice.
  bool SwapOut(SequenceGroup& group);

  // Returns the number of blocks that a swapped group needs for its return to the device and for
  // its known tokens. The first call counts in O(blocks log blocks); later calls return that count.
  int32_t NumBlocksToResume(SequenceGroup& group) const;

  // Returns the swapped or waiting group that runs next; nullptr if every group runs.
  SequenceGroup* Next() const;

  // Brings a swapped group back in the step that is being planned; the group runs from now on.
  // Returns false, without a change, if blocks are short. REQUIRES: handles are free for all live
  // sequences of the group.
  bool SwapIn(SequenceGroup& group);

  // If the sequence is the group's leader (its first live sequence) and has computed the prompt,
  // forks the sequences that wait for the leader. The forks share the blocks of all prompt tokens
  // except the last. Each fork computes the last prompt token, because it needs the token's logits.
  // REQUIRES: KvCacheManager::SlideWindow is called for the leader's slice only after this call.
  void ForkWaitingFrom(SequenceGroup& group, const Sequence& sequence);

  // Ends one sequence: frees its blocks and its handle, and emits SequenceFinished. The end of the
  // last sequence also ends the group, which is destroyed at once or, if a step is unanswered,
  // after the answer. REQUIRES: the sequence is not finished.
  void FinishSequence(SequenceGroup& group, Sequence& sequence, FinishReason reason);

  // Ends the whole group, and emits the hypotheses as its output. An output sequence for which
  // there is no hypothesis ends with `reason_without`. REQUIRES: the group does beam search.
  void FinishBeamSearch(SequenceGroup& group,
                        std::span<const BeamHypothesis> hypotheses,
                        FinishReason reason_without);

  // Ends every live sequence of the group.
  void FinishGroup(SequenceGroup& group, FinishReason reason);

  // Drops the epoch and the unanswered step; every running or swapped group waits again. The slices
  // of the step are kept until JudgeLoss.
  void LoseWorkers();

  // If the last loss of workers was a crash, counts it against every request in the lost step. A
  // request that has crashed its workers kMaxCrashes times ends with kWorkerCrash. REQUIRES: no
  // epoch is active.
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
