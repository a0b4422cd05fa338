// IntroductionBudget bounds the bytes of the introductions in one step. An introduction tells the
// workers every input that determines the tokens of a sequence. A sequence that is not introduced
// for lack of bytes gets no slice in this step, and is tried again in a later step.
//
// A beam search group may need introductions in every step, because its beams fork. If groups did
// not take turns, the beam search group would starve the groups behind it. So if a step refuses
// introductions, the first refused group becomes the owed group of the next step. The next step
// always allows the owed group's first introduction, and gives groups before the owed group only
// half of the budget. If that step refuses groups behind its owed group, the first of these groups
// is owed next.
//
// Thread safety: a value type.
// Invariants:    the first introduction of a step is allowed whatever its length, so no step is
//                empty for lack of bytes; the introductions of a step have at most max_bytes plus
//                the bytes of the two longest introductions.
#ifndef QUIRE_SCHEDULER_CORE_INTRODUCTION_BUDGET_H_
#define QUIRE_SCHEDULER_CORE_INTRODUCTION_BUDGET_H_

#include <cstdint>
#include <optional>

#include "scheduler/core/sequence_group.h"

namespace quire {

class IntroductionBudget {
 public:
  // owed: owed_next() of the previous step's budget.
  IntroductionBudget(int64_t max_bytes, std::optional<ScheduleRank> owed)
      : max_bytes_(max_bytes), owed_(owed) {}

  // Returns true if this step has room for an introduction of num_bytes bytes for the group.
  bool Allows(const SequenceGroup& group, int64_t num_bytes) const;

  // Takes num_bytes of the budget for an introduction of the group. REQUIRES: Allows returned true.
  void Take(const SequenceGroup& group, int64_t num_bytes);

  // Called after Allows returned false. The group may become owed_next().
  void OnRefused(const SequenceGroup& group);

  // Returns the rank of the group to owe in the next step: the first group that this step refused
  // or, if this step has an owed group, the first one behind it. Returns nullopt if there is none.
  std::optional<ScheduleRank> owed_next() const { return owed_next_; }

 private:
  bool IsBeforeOwed(const SequenceGroup& group) const;

  int64_t max_bytes_;
  int64_t num_bytes_ = 0;             // bytes of the introductions in this step so far
  std::optional<ScheduleRank> owed_;  // rank of the owed group
  bool is_owed_served_ = false;       // the owed group has had an introduction
  std::optional<ScheduleRank> owed_next_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_INTRODUCTION_BUDGET_H_
