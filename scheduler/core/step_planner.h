// StepPlanner chooses what one step computes. It closes gaps: running groups first, then swapped
// and waiting ones, all in the policy's order, under one token budget. Nothing is admitted in a
// step in which blocks were short.
//
// A request that is suspected of crashing its workers computes alone, before all others: see
// crash_suspects.h. It is cleared or ends within the steps that its known tokens take.
//
// A slice takes as many tokens of its sequence's gap as the budget has left. So long prompts are
// computed in chunks beside decoding sequences, and a budget smaller than the number of running
// sequences serves the first ones.
//
// A stream waits for whole steps, so while sequences decode, prompts get only as many tokens as are
// expected to leave the step at CoreConfig::target_inter_token: see step_bound.h. The blocks that a
// cut prompt will need are kept for it: groups that come back from host memory in the same step
// take what is left. Short prompts behind it may pass: see overtaking.h.
//
// Thread safety: lives for one call, on the state's thread.
// Source:        PagedAttention, Kwon et al. 2023, section 4.5; chunked prefill is Sarathi's,
//                Agrawal et al. 2023.
#ifndef QUIRE_SCHEDULER_CORE_STEP_PLANNER_H_
#define QUIRE_SCHEDULER_CORE_STEP_PLANNER_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/step/step_plan.h"
#include "scheduler/core/admission.h"
#include "scheduler/core/core_state.h"
#include "scheduler/core/introduction_budget.h"
#include "scheduler/core/token_budget.h"

namespace quire {

class StepPlanner {
 public:
  // REQUIRES: an epoch, and no unanswered step.
  explicit StepPlanner(CoreState& state);

  // Returns nullopt if there is nothing to do. A plan without slices waits for swaps, or releases
  // handles that a waiting group needs. Makes the step unanswered. Call once.
  std::optional<StepPlan> Plan();

 private:
  // The order in which the sequences of a group get their slices.
  enum class Turn : uint8_t {
    kForked,     // has blocks of others: copies a shared last block, so that others may write to it
    kGoingOn,    // known to the worker
    kBeginning,  // has nothing yet: shares what those before it compute
  };

  // Tokens and introductions that the step has left.
  struct Budgets {
    TokenBudget all;
    TokenBudget prompts;  // of them: for gaps of more than one token
    TokenBudget spare;    // of these: tokens that hardly lengthen the step
    IntroductionBudget introductions;
  };

  // Plans the suspect and nothing else. Running groups keep their blocks and wait; if there is no
  // room beside them they are preempted, even groups ahead: it is for a few steps. Returns false if
  // the suspect can never fit, and has ended.
  bool PlanAlone(SequenceGroup& suspect);
  bool StartAlone(SequenceGroup& suspect);
  // Ends groups at the front of the queue that can no longer be complete by their deadline.
  void DropUnreachable();
  // Preempts running groups behind the next group, until that has room.
  void PreemptForNext();
  bool IsAhead(const SequenceGroup& waiting, const SequenceGroup& running) const;
  // Whether there is room once leaving blocks and released handles are free.
  bool WillHaveRoom(SequenceGroup& group) const;
  void PlanRunning();
  // Whether the step lacks room for the prompt. Then SetAside reserves its part of the step, and
  // PlanCut plans it after the groups that may pass.
  bool IsToBePassed(const SequenceGroup& group) const;
  void SetAside(SequenceGroup& cut, int32_t num_blocks);
  void PlanCut();
  // Plans groups that have passed already, then starts others that pass.
  void PlanPassing();
  // Swapped groups and waiting ones, in the policy's order.
  void PlanOthers();
  bool ResumeSwapped(SequenceGroup& group);
  bool StartWaiting(SequenceGroup& first);
  // Takes the blocks that others have. Returns false if too few are free for the rest.
  bool BeginTable(const SequenceGroup& group, Sequence& sequence);
  void Introduce(const SequenceGroup& group, Sequence& sequence);
  // Fills line_ with those sequences of the group that may get a slice.
  void LineUp(SequenceGroup& group);
  // Plans slices for line_. REQUIRES: it is the group's.
  void PlanLine(SequenceGroup& group);
  // As PlanLine, for a group that has just started: keeps blocks for it, too.
  void PlanFirstLine(SequenceGroup& group);
  void PlanSlice(SequenceGroup& group, Sequence& sequence);
  // Bounds the prompt tokens of the step by the target, if any sequence decodes.
  void BoundPrompts();
  std::optional<StepPlan> Finish();

  // Blocks that PlanLine would take now. REQUIRES: as PlanLine.
  int32_t NumBlocksNeeded(const SequenceGroup& group) const;
  Room RoomNow() const;
  // Whether the group may start. room: without num_shared_blocks.
  AllocStatus AdmitInto(Room room, SequenceGroup& group) const;
  // Whether the group is recomputed with the spare tokens of steps (PreemptionCost). Several
  // sequences are recomputed at once: in slices, each would begin before the earlier ones have
  // computed the blocks to share.
  bool IsRecomputedInSlices(const SequenceGroup& group) const;
  static bool HasTokensFor(const Sequence& sequence, const Budgets& budgets);
  int64_t IntroductionBytesOf(const SequenceGroup& group, const Sequence& sequence) const;
  // Whether the workers know the sequence, or may be told of it in this step.
  bool MayBeKnown(const SequenceGroup& group, const Sequence& sequence) const;
  // Likewise for the first sequence of a group that is to start or to come back.
  bool MayIntroduceFirst(const SequenceGroup& group);
  // Takes the tokens of the sequence from the budgets. Returns how many.
  int32_t TakeTokens(const SequenceGroup& group, const Sequence& sequence, Budgets& budgets) const;
  // Tokens that it would take from an endless budget.
  int32_t NumTokensWanted(const SequenceGroup& group,
                          const Sequence& sequence,
                          const TokenBudget& spare) const;
  int32_t NumWatermarkBlocks() const;
  // Blocks that a running sequence will still take for its known tokens; for a group, the sum over
  // its sequences that lack tokens in this step.
  int32_t NumBlocksKeptFor(const Sequence& sequence) const;
  int32_t NumBlocksKeptFor(const SequenceGroup& group) const;
  // O(running sequences) if a prompt was cut. REQUIRES: groups that run have their slices.
  void CountKeptBlocks();
  // Free blocks without those that are kept for prompts that were cut. REQUIRES: they are counted.
  int32_t NumBlocksToGive() const;

  CoreState& state_;
  Epoch& epoch_;
  Budgets budgets_;
  int32_t num_step_tokens_;  // bound on the tokens of a step, by the target
  bool are_prompts_bounded_ = false;
  bool is_any_cut_ = false;       // whether a running prompt was cut
  SequenceGroup* cut_ = nullptr;  // set aside
  int32_t num_set_aside_ = 0;     // tokens
  int32_t num_reserved_ = 0;      // blocks, for groups before those that are planned next
  int32_t num_kept_ = 0;          // blocks, for prompts that were cut, as counted last
  StepPlan plan_;
  std::vector<std::pair<Turn, Sequence*>> line_;  // in the order of their turns, then of index
  // The last group that was ordered back. Its blocks of this step are not published: if one of the
  // swap-ins fails they are no good, and others would have built on them.
  const SequenceGroup* arriving_ = nullptr;
  bool may_admit_ = true;
  // Room was made for the next group, and no other group may start in this step.
  bool has_made_room_ = false;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_STEP_PLANNER_H_
