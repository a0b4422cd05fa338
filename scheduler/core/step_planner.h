// StepPlanner chooses what one step computes. It closes gaps: running groups first, then swapped
// and waiting ones, all in the policy's order, under one token budget. Nothing is admitted in a
// step in which blocks were short.
//
// While a request is suspected to crash its workers it computes alone, before everybody else: see
// crash_suspects.h. It is cleared or ends within the steps that its known tokens take.
//
// A slice takes as many tokens of its sequence's gap as the budget has left. So long prompts are
// computed in chunks beside decoding sequences, and a budget smaller than the number of running
// sequences serves the first ones.
//
// A stream waits for whole steps, so while sequences decode, prompts get as many tokens as are
// expected to leave the step at CoreConfig::target_inter_token: see step_bound.h. A prompt that is
// cut so keeps the blocks that it will need: groups that come back from host memory in the same
// step take what is left. Short prompts behind it may pass: see overtaking.h.
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

  // Nothing when no slice is possible. A plan without slices is made only to release handles that
  // a waiting group needs. Makes the step unanswered. Call once.
  std::optional<StepPlan> Plan();

 private:
  // The order in which the sequences of a group get their slices.
  enum class Turn : uint8_t {
    kForked,   // takes its own copy of a last block that it shares, so that others may write to it
    kGoingOn,  // known to the worker
    kBeginning,  // has nothing yet: shares what those before it compute
  };

  // What is left to give out.
  struct Budgets {
    TokenBudget all;
    TokenBudget prompts;  // of them: for whoever lacks more than one token
    TokenBudget spare;    // of these: makes the step hardly longer
    IntroductionBudget introductions;
  };

  // The suspect computes, and nobody else. Who runs keeps its blocks and waits; where there is no
  // room beside them they are preempted, whoever is ahead: it is for a few steps. False: it can
  // never fit, and has ended.
  bool PlanAlone(SequenceGroup& suspect);
  bool StartAlone(SequenceGroup& suspect);
  // First ones that wait and cannot be complete by their deadline any more end.
  void DropUnreachable();
  // Groups behind the next one that does not run yet make room for it.
  void PreemptForNext();
  bool IsAhead(const SequenceGroup& waiting, const SequenceGroup& running) const;
  // Once what is on its way has left.
  bool WillHaveRoom(SequenceGroup& group) const;
  void PlanRunning();
  // A prompt that the step has no room for waits until those that may pass it have their part.
  bool IsToBePassed(const SequenceGroup& group) const;
  void SetAside(SequenceGroup& cut, int32_t num_blocks);
  void PlanCut();
  // Those that have passed already, then those that start.
  void PlanShort();
  // Swapped groups and waiting ones, in the policy's order.
  void PlanOthers();
  bool ResumeSwapped(SequenceGroup& group);
  bool StartWaiting(SequenceGroup& first);
  // Takes the blocks that others have. False: there are too few for the rest.
  bool BeginTable(const SequenceGroup& group, Sequence& sequence);
  void Introduce(const SequenceGroup& group, Sequence& sequence);
  // Fills line_ with those sequences of the group that may get a slice.
  void LineUp(SequenceGroup& group);
  // Slices for line_. REQUIRES: it is the group's.
  void PlanLine(SequenceGroup& group);
  // The same for a group that has just started; blocks are kept for it too.
  void PlanFirstLine(SequenceGroup& group);
  void PlanSlice(SequenceGroup& group, Sequence& sequence);
  // Leaves to prompts what the target does, if anybody decodes.
  void BoundPrompts();
  std::optional<StepPlan> Finish();

  // Blocks that PlanLine would take now. REQUIRES: as there.
  int32_t NumBlocksNeeded(const SequenceGroup& group) const;
  Room RoomNow() const;
  // Whether the group may start. room: without what the group shares.
  AllocStatus AdmitInto(Room room, SequenceGroup& group) const;
  // With what a step has to spare, see PreemptionCost. Several sequences are recomputed at once:
  // each begins with blocks that those before it compute, and would miss what they have not yet.
  bool IsRecomputedInSlices(const SequenceGroup& group) const;
  static bool HasTokensFor(const Sequence& sequence, const Budgets& budgets);
  int64_t IntroductionBytesOf(const SequenceGroup& group, const Sequence& sequence) const;
  // Whether the workers know the sequence, or may be told of it in this step.
  bool MayBeKnown(const SequenceGroup& group, const Sequence& sequence) const;
  // Likewise for the first sequence of a group that is to start or to come back.
  bool MayIntroduceFirst(const SequenceGroup& group);
  // How many tokens the sequence gets.
  int32_t TakeTokens(const SequenceGroup& group, const Sequence& sequence, Budgets& budgets) const;
  // How many it would take if the budget were endless.
  int32_t NumTokensWanted(const SequenceGroup& group,
                          const Sequence& sequence,
                          const TokenBudget& spare) const;
  int32_t NumWatermarkBlocks() const;
  // Blocks that a running sequence will still take for the tokens that it has, and those of all
  // that a group's sequences lack in this step.
  int32_t NumBlocksKeptFor(const Sequence& sequence) const;
  int32_t NumBlocksKeptFor(const SequenceGroup& group) const;
  // O(running sequences) if a prompt was cut. REQUIRES: groups that run have their slices.
  void CountKeptBlocks();
  // Free blocks without those that are kept for prompts that were cut. REQUIRES: they are counted.
  int32_t NumBlocksToGive() const;

  CoreState& state_;
  Epoch& epoch_;
  Budgets budgets_;
  int32_t num_step_tokens_;  // of a step that is as long as streams may wait
  bool are_prompts_bounded_ = false;
  bool is_any_cut_ = false;       // of the prompts that run
  SequenceGroup* cut_ = nullptr;  // set aside
  int32_t num_set_aside_ = 0;     // tokens
  int32_t num_reserved_ = 0;      // blocks, for groups before those that are planned next
  int32_t num_kept_ = 0;          // blocks, for prompts that were cut, as counted last
  StepPlan plan_;
  std::vector<std::pair<Turn, Sequence*>> line_;  // in the order of their turns, then of index
  // The last group that was ordered back. What it computes in this step is not published: it is no
  // good if one of the swap-ins fails, and would be by then what others build on.
  const SequenceGroup* arriving_ = nullptr;
  bool may_admit_ = true;
  bool has_made_room_ = false;  // for the next group, which alone may start then
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_STEP_PLANNER_H_
