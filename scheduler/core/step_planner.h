// StepPlanner chooses what one step computes. Each sequence has a gap: known tokens that are not
// computed yet. The planner spends one token budget on the gaps of running groups first, then of
// swapped and waiting groups, all in the policy's order. A step in which blocks were short admits
// no group.
//
// A request that is suspected of crashing its workers is computed alone, before all others: see
// crash_suspects.h. When its known tokens are computed, the request is no longer suspected, or it
// has ended.
//
// A sequence's slice (the tokens that the step computes) is its whole gap, or the rest of the
// budget if the gap is larger. Therefore long prompts are computed in chunks beside decoding
// sequences, and a budget smaller than the number of running sequences serves only the first ones.
//
// A stream gets a token only when a whole step ends. So while sequences decode, prompts get only as
// many tokens as should keep the step within CoreConfig::target_inter_token (step_bound.h). If this
// bound cuts a prompt, the blocks that the prompt still needs are kept for it. Groups that return
// from host memory in the same step cannot take these blocks. Short prompts behind a cut prompt may
// pass it (overtaking.h).
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
#include "scheduler/core/step_budget.h"

namespace quire {

class StepPlanner {
 public:
  // REQUIRES: an epoch is active, and no step is unanswered.
  explicit StepPlanner(CoreState& state);

  // Returns nullopt if there is nothing to do. A plan without slices waits for swaps (workers
  // answer it when all swaps are done), or makes the workers release handles for which a group
  // waits. If a plan is returned, its step is unanswered from then on. REQUIRES: this object's Plan
  // was not called before.
  std::optional<StepPlan> Plan();

 private:
  // The order in which the sequences of a group get their slices.
  enum class Turn : uint8_t {
    kForked,     // a fork: copies its shared last block before the other holders write into it
    kGoingOn,    // known to the worker
    kBeginning,  // has no blocks yet; may share blocks that earlier sequences compute
  };

  // Plans the crash suspect and nothing else. Running groups wait and keep their blocks. If the
  // suspect has no room beside these groups, preempts them from the last one on. Preempts even
  // groups ahead of the suspect, because the suspect runs alone for only a few steps. If the
  // suspect can never fit, ends it and returns false.
  bool PlanAlone(SequenceGroup& suspect);
  bool StartAlone(SequenceGroup& suspect);
  // While the first waiting group cannot be complete by its deadline, ends that group.
  void DropUnreachable();
  // Preempts running groups behind the next swapped or waiting group, until that group has room.
  void PreemptForNext();
  bool IsAhead(const SequenceGroup& waiting, const SequenceGroup& running) const;
  // Whether the group will have room once leaving blocks (being copied to host memory) and handles
  // to release are free.
  bool WillHaveRoom(SequenceGroup& group) const;
  void PlanRunning();
  // Whether the step computes only a part of the group's prompt, and other groups may overtake the
  // group.
  bool IsToBePassed(const SequenceGroup& group) const;
  // Reserves the prompt tokens left in the step, and num_blocks blocks, for PlanOvertakenGroup.
  void SetAside(SequenceGroup& overtaken, int32_t num_blocks);
  // Plans the groups that overtake, then the group that they overtake, if there is one.
  void PlanOvertakenGroup();
  // Plans the groups that began to overtake in earlier steps, then starts more groups that
  // overtake.
  void PlanPassing();
  // Plans swapped and waiting groups, in the policy's order.
  void PlanOthers();
  bool ResumeSwapped(SequenceGroup& group);
  bool StartWaiting(SequenceGroup& first);
  // Begins the sequence's table with blocks that other sequences computed, as far as there are any.
  // Returns false if too few blocks are free for the rest of the slice.
  bool BeginTable(SequenceGroup& group, Sequence& sequence);
  // Workers map whole pages. If other tables keep the sequence's table from growing in its last
  // page, copies the table's blocks of that page to a page of its own. Does so only if enough
  // blocks stay free for the largest step, and the step has few copies.
  void MoveToOwnPage(Sequence& sequence);
  void Introduce(const SequenceGroup& group, Sequence& sequence);
  // Fills line_ with the sequences of the group that may get a slice.
  void LineUp(SequenceGroup& group);
  // Plans slices for the sequences of line_. REQUIRES: LineUp was last called for this group.
  void PlanLine(SequenceGroup& group);
  // As PlanLine, for a group that starts or returns from host memory in this step. Also counts the
  // blocks to keep for the group's later slices.
  void PlanFirstLine(SequenceGroup& group);
  void PlanSlice(SequenceGroup& group, Sequence& sequence);
  // Bounds the prompt tokens of the step by target_inter_token, if any sequence decodes.
  void BoundPrompts();
  std::optional<StepPlan> Finish();

  // Number of blocks that PlanLine would take now. REQUIRES: as PlanLine.
  int32_t NumBlocksNeeded(const SequenceGroup& group) const;
  Room RoomNow() const;
  // Whether the group may start. Callers leave room.num_shared_blocks at 0: this function counts
  // the shared blocks, but only if the answer depends on them.
  AllocStatus AdmitInto(Room room, SequenceGroup& group) const;
  int32_t NumWatermarkBlocks() const;
  // Number of blocks that a running sequence will still take for its known tokens.
  int32_t NumBlocksKeptFor(const Sequence& sequence) const;
  // Sums NumBlocksKeptFor over the group's running sequences that have uncomputed known tokens
  // after this step, except sequences that wait for a leader.
  int32_t NumBlocksKeptFor(const SequenceGroup& group) const;
  // If a prompt was cut, sets num_kept_ to the sum of NumBlocksKeptFor over all running groups, in
  // O(running sequences). Otherwise sets num_kept_ to 0. REQUIRES: the running groups have their
  // slices.
  void CountKeptBlocks();
  // Number of free blocks, less the blocks that are kept for cut prompts. REQUIRES: num_kept_ is up
  // to date.
  int32_t NumBlocksToGive() const;

  CoreState& state_;
  Epoch& epoch_;
  StepBudget budget_;
  int32_t num_step_tokens_;  // bound on the tokens of the step, by target_inter_token
  bool are_prompts_bounded_ = false;
  bool is_any_cut_ = false;                   // whether a running prompt is computed only in part
  SequenceGroup* overtaken_group_ = nullptr;  // its prompt is cut, so short prompts may pass it
  int32_t num_set_aside_ = 0;  // tokens reserved for the overtaken group and groups that pass it
  int32_t num_reserved_ = 0;   // blocks reserved for earlier groups that have no slice yet
  int32_t num_kept_ = 0;       // blocks kept for cut prompts, by the last count
  StepPlan plan_;
  std::vector<std::pair<Turn, Sequence*>> line_;  // by turn, then by sequence index
  // The last group that this step brings back from host memory. The blocks that the group fills in
  // this step are not added to the prefix cache: if a swap-in fails, these blocks are invalid, so
  // other groups must not share them.
  const SequenceGroup* arriving_ = nullptr;
  bool may_admit_ = true;
  // Whether groups were preempted for the next group. If so, no other group may start in this step.
  bool has_made_room_ = false;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_STEP_PLANNER_H_
