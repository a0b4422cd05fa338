// Sampling on the CPU. kernels/api/sampling.h is the contract.
//
// Passes over a whole row are vectorized (row_scan.h). Every row has a pass for its maxima. A row
// with log-probabilities has a pass for their normalizer. A row that is not greedy and has no top-k
// has a pass for its weights. No row is ever sorted. Top-k, top-p and the reported likeliest tokens
// first reduce the row to candidates, in one or several passes. Each pass drops only tokens that
// cannot be in the result. Top-k and top-p then distribute the candidates over buckets and sort
// only one bucket (candidate_set.h).
//
// Probabilities are fp32 weights exp((logit - max) / temperature); their sums are doubles.
//
// Thread safety: one caller at a time per team.
// Cost:          parallel over rows. A greedy row takes one pass, about 10 us for 128 k logits.
//                Allocates nothing in steady use.
#ifndef QUIRE_KERNELS_CPU_SAMPLING_H_
#define QUIRE_KERNELS_CPU_SAMPLING_H_

#include "kernels/api/sampling.h"
#include "kernels/cpu/row_scan.h"
#include "kernels/cpu/thread_team.h"

namespace quire {

void Sample(const SampleParams& params, const RowScan& scan, ThreadTeam& team);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_SAMPLING_H_
