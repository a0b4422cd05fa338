// IntroductionBudget bounds the bytes of the introductions in one step. A sequence that is not
// introduced for want of bytes gets no slice, and has its turn in a later step.
//
// A group may need introductions in every step: beams fork. So the group that was refused is owed
// its turn: in the next step, groups before it get half of the budget, and its first introduction
// is allowed in any case. The turn then goes on to the next group that was refused behind it.
//
// Thread safety: a value type.
// Invariants:    the first introduction of a step is allowed whatever its length, so no step is
//                empty for want of bytes; a step has the budget at most, and two of the longest
//                introductions.
#ifndef QUIRE_SCHEDULER_CORE_INTRODUCTION_BUDGET_H_
#define QUIRE_SCHEDULER_CORE_INTRODUCTION_BUDGET_H_

#include <cstdint>
#include <optional>

#include "scheduler/core/sequence_group.h"

namespace quire {

class IntroductionBudget {
 public:
  // owed: what owed_next() said of the step before.
  IntroductionBudget(int64_t max_bytes, std::optional<ScheduleRank> owed)
      : max_bytes_(max_bytes), owed_(owed) {}

  // Whether the group may introduce a sequence of so many bytes.
  bool Allows(const SequenceGroup& group, int64_t num_bytes) const;

  // The group introduces a sequence. REQUIRES: Allows.
  void Take(const SequenceGroup& group, int64_t num_bytes);

  // The group gets nothing more in this step.
  void OnRefused(const SequenceGroup& group);

  // The first group behind the owed one that was refused; nullopt if there is none.
  std::optional<ScheduleRank> owed_next() const { return owed_next_; }

 private:
  bool IsBeforeOwed(const SequenceGroup& group) const;

  int64_t max_bytes_;
  int64_t num_bytes_ = 0;  // taken
  std::optional<ScheduleRank> owed_;
  bool is_owed_served_ = false;
  std::optional<ScheduleRank> owed_next_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_INTRODUCTION_BUDGET_H_
