#include "scheduler/core/introduction_budget.h"

#include <limits>

namespace quire {
namespace {

constexpr int64_t kUnranked = std::numeric_limits<int64_t>::max();

// Returns the group's rank. A group that the policy has not ranked yet is behind all ranked groups.
ScheduleRank RankOf(const SequenceGroup& group) {
  return group.has_rank() ? group.rank() : ScheduleRank{.value = kUnranked, .id = group.id()};
}

}  // namespace

bool IntroductionBudget::Allows(const SequenceGroup& group, int64_t num_bytes) const {
  const bool is_owed = owed_.has_value() && owed_->id == group.id() && !is_owed_served_;
  const int64_t most = IsBeforeOwed(group) ? max_bytes_ / 2 : max_bytes_;
  return num_bytes_ == 0 || is_owed || num_bytes_ + num_bytes <= most;
}

void IntroductionBudget::Take(const SequenceGroup& group, int64_t num_bytes) {
  num_bytes_ += num_bytes;
  is_owed_served_ = is_owed_served_ || (owed_.has_value() && owed_->id == group.id());
}

void IntroductionBudget::OnRefused(const SequenceGroup& group) {
  const ScheduleRank rank = RankOf(group);
  if (!owed_next_.has_value() && (!owed_.has_value() || *owed_ < rank)) {
    owed_next_ = rank;
  }
}

// The answer is the same before and after the group gets its rank, which some groups get only when
// they start. Otherwise a group could be allowed to start, and then be refused its introduction.
bool IntroductionBudget::IsBeforeOwed(const SequenceGroup& group) const {
  if (!owed_.has_value() || owed_->id == group.id()) {
    return false;
  }
  return group.has_rank() ? group.rank() < *owed_ : owed_->value == kUnranked;
}

}  // namespace quire
