// StepAnswers collects the answers of all ranks to one plan, and merges them into the group's
// answer.
//
// Thread safety: not thread-safe; owned by WorkerGroup.
// Errors:        kInternal, reason OTHER_PLAN, from Add; kInternal, reason RANKS_DIFFER, from
//                Merge.
#ifndef QUIRE_SCHEDULER_GROUP_STEP_ANSWERS_H_
#define QUIRE_SCHEDULER_GROUP_STEP_ANSWERS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/step/step_plan.h"
#include "common/step/step_result.h"

namespace quire {

class StepAnswers {
 public:
  StepAnswers(const StepPlan& plan, size_t num_ranks);

  uint64_t step_id() const { return header_.step_id; }
  bool HasAnswered(int32_t rank) const { return answers_[static_cast<size_t>(rank)].has_value(); }
  // Returns true if the rank still owes an answer with this header. An answer for which this
  // returns false is stale.
  bool IsAwaited(int32_t rank, const StepHeader& header) const {
    return header == header_ && !HasAnswered(rank);
  }
  // Keeps the rank's answer. Errors: OTHER_PLAN if the answer's digest is not the plan's digest.
  // REQUIRES: IsAwaited(rank, result.header).
  absl::Status Add(int32_t rank, StepResult result);
  bool is_complete() const;
  // Returns one answer for all ranks. Errors: RANKS_DIFFER. REQUIRES: is_complete(); called at most
  // once.
  absl::StatusOr<StepResult> Merge();

 private:
  StepHeader header_;
  uint64_t digest_ = 0;
  std::vector<BlockSwapIn> swap_ins_;
  std::vector<std::optional<StepResult>> answers_;  // by rank
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_STEP_ANSWERS_H_
