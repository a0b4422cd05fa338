// MergeResults merges the results that the ranks of a group returned for one plan. All ranks
// compute the same tokens; a rank that differs computes wrongly, and the blocks it wrote cannot be
// trusted either.
//
//   header, digest, tokens, row hash   equal on all ranks (a row hash of 0 is not compared)
//   failed swap-ins                    blocks whose swap-in failed on any rank, in plan order
//   swaps done                         the swaps that all ranks have done
//   timings                            the longest time of all ranks; for collectives the shortest
//                                      time, which includes the least waiting
//   log-probabilities, scored slices   taken from rank 0
//
// Thread safety: a free function, safe from any thread.
// Errors:        kInternal RANKS_DIFFER, message "rank N: field: rule".
// Cost:          O(sampled tokens) a rank; O(1) if there is only one rank.
#ifndef QUIRE_COMMON_STEP_MERGE_RESULTS_H_
#define QUIRE_COMMON_STEP_MERGE_RESULTS_H_

#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "common/step/step_plan.h"
#include "common/step/step_result.h"

namespace quire {

// results: one result per rank, in the order of the ranks. swap_ins: the swap-ins of the plan.
// REQUIRES: results is not empty.
absl::StatusOr<StepResult> MergeResults(std::vector<StepResult> results,
                                        std::span<const BlockSwapIn> swap_ins);

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_MERGE_RESULTS_H_
