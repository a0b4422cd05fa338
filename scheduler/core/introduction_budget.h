// IntroductionBudget bounds the bytes of the introductions in one step. A sequence that is not
// introduced for lack of bytes gets no slice in this step, and is tried again in a later one.
//
// A group of beams forks, and may need introductions in every step. So that it cannot starve the
// groups behind it, the turn is owed to a refused group: in the next step, groups before it get
// half of the budget, and its first introduction is allowed in any case. Then the turn is owed to
// the next refused group behind it.
//
// Thread safety: a value type.
// Invariants:    the first introduction of a step is allowed whatever its length, so no step is
//                empty for lack of bytes; a step has at most the budget and two of the longest.
#ifndef QUIRE_SCHEDULER_CORE_INTRODUCTION_BUDGET_H_
#define QUIRE_SCHEDULER_CORE_INTRODUCTION_BUDGET_H_

#include <cstdint>
#include <optional>

#include "scheduler/core/sequence_group.h"

namespace quire {

class IntroductionBudget {
 public:
  // owed: owed_next() of the previous step.
  IntroductionBudget(int64_t max_bytes, std::optional<ScheduleRank> owed)
      : max_bytes_(max_bytes), owed_(owed) {}

  // Returns true if the group may introduce a sequence of num_bytes bytes.
  bool Allows(const SequenceGroup& group, int64_t num_bytes) const;

  // The group introduces a sequence. REQUIRES: Allows.
  void Take(const SequenceGroup& group, int64_t num_bytes);

  // The group was refused, and gets nothing more in this step.
  void OnRefused(const SequenceGroup& group);

  // The first group behind the owed one that was refused; nullopt if there is none.
  std::optional<ScheduleRank> owed_next() const { return owed_next_; }

 private:
  bool IsBeforeOwed(const SequenceGroup& group) const;

  int64_t max_bytes_;
  int64_t num_bytes_ = 0;  // taken in this step
  std::optional<ScheduleRank> owed_;
  bool is_owed_served_ = false;
  std::optional<ScheduleRank> owed_next_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_INTRODUCTION_BUDGET_H_
