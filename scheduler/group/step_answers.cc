#include "scheduler/group/step_answers.h"

#include <algorithm>
#include <utility>

#include "common/base/error.h"
#include "common/step/merge_results.h"

namespace quire {

StepAnswers::StepAnswers(const StepPlan& plan, size_t num_ranks)
    : header_(plan.header), digest_(plan.digest), swap_ins_(plan.swap_ins), answers_(num_ranks) {}

absl::Status StepAnswers::Add(int32_t rank, StepResult result) {
  if (result.plan_digest != digest_) {
    return Error(
        absl::StatusCode::kInternal, "OTHER_PLAN", "plan_digest: the worker answered another plan");
  }
  answers_[static_cast<size_t>(rank)] = std::move(result);
  return absl::OkStatus();
}

bool StepAnswers::is_complete() const {
  return std::ranges::all_of(answers_, [](const auto& answer) { return answer.has_value(); });
}

absl::StatusOr<StepResult> StepAnswers::Merge() {
  std::vector<StepResult> results;
  results.reserve(answers_.size());
  for (std::optional<StepResult>& answer : answers_) {
    results.push_back(*std::move(answer));
  }
  return MergeResults(std::move(results), swap_ins_);
}

}  // namespace quire
