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
#include <limits>
#include <optional>

#include "scheduler/core/sequence_group.h"

namespace quire {

class IntroductionBudget {
 public:
  // owed: what owed_next() said of the step before.
  IntroductionBudget(int64_t max_bytes, std::optional<ScheduleRank> owed)
      : max_bytes_(max_bytes), owed_(owed) {}

  // Whether the group may introduce a sequence of so many bytes.
  bool Allows(const SequenceGroup& group, int64_t num_bytes) const {
    const bool is_owed = owed_.has_value() && owed_->id == group.id() && !is_owed_served_;
    const int64_t most = IsBeforeOwed(group) ? max_bytes_ / 2 : max_bytes_;
    return num_bytes_ == 0 || is_owed || num_bytes_ + num_bytes <= most;
  }

  // The group introduces a sequence. REQUIRES: Allows.
  void Take(const SequenceGroup& group, int64_t num_bytes) {
    num_bytes_ += num_bytes;
    is_owed_served_ = is_owed_served_ || (owed_.has_value() && owed_->id == group.id());
  }

  // The group gets nothing more in this step.
  void OnRefused(const SequenceGroup& group) {
    const ScheduleRank rank = RankOf(group);
    if (!owed_next_.has_value() && (!owed_.has_value() || *owed_ < rank)) {
      owed_next_ = rank;
    }
  }

  // The first group behind the owed one that was refused; nullopt if there is none.
  std::optional<ScheduleRank> owed_next() const { return owed_next_; }

 private:
  static constexpr int64_t kUnranked = std::numeric_limits<int64_t>::max();

  // A group that the policy has not ranked yet comes behind all that have a rank.
  static ScheduleRank RankOf(const SequenceGroup& group) {
    return group.has_rank() ? group.rank() : ScheduleRank{.value = kUnranked, .id = group.id()};
  }

  // The answer is the same before and after the group gets its rank, which it does when it starts.
  bool IsBeforeOwed(const SequenceGroup& group) const {
    if (!owed_.has_value() || owed_->id == group.id()) {
      return false;
    }
    return group.has_rank() ? group.rank() < *owed_ : owed_->value == kUnranked;
  }

  int64_t max_bytes_;
  int64_t num_bytes_ = 0;  // taken
  std::optional<ScheduleRank> owed_;
  bool is_owed_served_ = false;
  std::optional<ScheduleRank> owed_next_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_INTRODUCTION_BUDGET_H_
