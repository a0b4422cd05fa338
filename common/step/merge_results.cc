#include "common/step/merge_results.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

bool IsSameToken(const SampledToken& a, const SampledToken& b) {
  return a.handle == b.handle && a.token_id == b.token_id && a.finite == b.finite;
}

absl::Status CheckSame(const std::vector<StepResult>& results, size_t rank, size_t other) {
  const StepResult& result = results[rank];
  const StepResult& first = results[other];
  const auto differs = [rank, other](std::string_view field) {
    return Error(absl::StatusCode::kInternal,
                 "RANKS_DIFFER",
                 absl::StrCat("rank ", rank, ": ", ToAbsl(field), ": differs from rank ", other));
  };
  if (!(result.header == first.header) || result.plan_digest != first.plan_digest) {
    return differs("header");
  }
  if (!std::equal(result.sampled.begin(),
                  result.sampled.end(),
                  first.sampled.begin(),
                  first.sampled.end(),
                  IsSameToken)) {
    return differs("token_id");
  }
  if (result.row_hash != 0 && first.row_hash != 0 && result.row_hash != first.row_hash) {
    return differs("row_hash");
  }
  return absl::OkStatus();
}

// Returns OK if all ranks agree, else an error that names one rank. The error names rank 0 if the
// other ranks, at least two, agree with each other but not with rank 0. Otherwise the error names
// the first rank that differs from rank 0.
absl::Status CheckAllSame(const std::vector<StepResult>& results) {
  size_t num_different = 0;
  absl::Status first_difference;
  for (size_t rank = 1; rank < results.size(); ++rank) {
    absl::Status same = CheckSame(results, rank, 0);
    num_different += same.ok() ? 0 : 1;
    first_difference.Update(std::move(same));
  }
  const size_t num_others = results.size() - 1;
  if (num_different < num_others || num_others < 2) {
    return first_difference;
  }
  for (size_t rank = 2; rank < results.size(); ++rank) {
    if (!CheckSame(results, rank, 1).ok()) {
      return first_difference;
    }
  }
  return CheckSame(results, 0, 1);
}

// Returns the blocks whose swap-in failed on at least one rank, in the order of the plan.
std::vector<BlockId> UniteFailed(const std::vector<StepResult>& results,
                                 std::span<const BlockSwapIn> swap_ins) {
  std::vector<BlockId> united;
  for (const BlockSwapIn& swap : swap_ins) {
    const bool failed = std::any_of(results.begin(), results.end(), [&swap](const StepResult& r) {
      return std::find(r.failed_swap_ins.begin(), r.failed_swap_ins.end(), swap.block) !=
             r.failed_swap_ins.end();
    });
    if (failed) {
      united.push_back(swap.block);
    }
  }
  return united;
}

}  // namespace

absl::StatusOr<StepResult> MergeResults(std::vector<StepResult> results,
                                        std::span<const BlockSwapIn> swap_ins) {
  StepResult& first = results.front();
  if (results.size() == 1) {
    return std::move(first);
  }
  const bool any_failed = std::any_of(results.begin(), results.end(), [](const StepResult& r) {
    return !r.failed_swap_ins.empty();
  });
  if (any_failed) {
    first.failed_swap_ins = UniteFailed(results, swap_ins);
  }
  QUIRE_RETURN_IF_ERROR(CheckAllSame(results));
  for (size_t rank = 1; rank < results.size(); ++rank) {
    const StepResult& result = results[rank];
    first.swaps_done_step_id = std::min(first.swaps_done_step_id, result.swaps_done_step_id);
    first.timings.build_us = std::max(first.timings.build_us, result.timings.build_us);
    first.timings.forward_us = std::max(first.timings.forward_us, result.timings.forward_us);
    first.timings.sample_us = std::max(first.timings.sample_us, result.timings.sample_us);
    // A rank's time includes its wait for slower ranks. The slowest rank waits for none, so its
    // time is the minimum.
    first.timings.collective_us =
        std::min(first.timings.collective_us, result.timings.collective_us);
  }
  return std::move(first);
}

}  // namespace quire
