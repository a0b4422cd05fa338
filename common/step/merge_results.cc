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

absl::Status CheckSame(const StepResult& result, const StepResult& first, size_t rank) {
  const auto differs = [rank](std::string_view field) {
    return Error(absl::StatusCode::kInternal,
                 "RANKS_DIFFER",
                 absl::StrCat("rank ", rank, ": ", ToAbsl(field), ": not what rank 0 has"));
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

// Every rank lists its own in the order of the plan.
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
  for (size_t rank = 1; rank < results.size(); ++rank) {
    const StepResult& result = results[rank];
    QUIRE_RETURN_IF_ERROR(CheckSame(result, first, rank));
    first.swaps_done_step_id = std::min(first.swaps_done_step_id, result.swaps_done_step_id);
    first.timings.build_us = std::max(first.timings.build_us, result.timings.build_us);
    first.timings.forward_us = std::max(first.timings.forward_us, result.timings.forward_us);
    first.timings.sample_us = std::max(first.timings.sample_us, result.timings.sample_us);
    // The slowest rank waits for nobody.
    first.timings.collective_us =
        std::min(first.timings.collective_us, result.timings.collective_us);
  }
  return std::move(first);
}

}  // namespace quire
