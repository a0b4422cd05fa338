// Sampling: one CTA per row, without sorting the row. kernels/api/sampling.h defines the result.
//
// Mass: the probability of a token divided by that of the likeliest token, in units of 2^-40,
// truncated to an integer. Integer sums are the same in any order, so their bits do not depend on
// which threads formed them, and histograms can use atomics. Truncation loses at most 2^-40 per
// token, or 2^-23 of the total for 128k tokens, less than the error of one fp32 logit. Tokens that
// are less than 2^-40 times as likely as the likeliest have mass 0 and are never drawn. This loses
// little: the random number of a draw has only 32 bits.
//
// Rank: a 64-bit integer for each token of a row, greater for likelier tokens and, among equal
// logits, for lower ids. Ranks are distinct, so one number, the cutoff, describes the result of
// top-k or top-p: tokens of rank >= cutoff are kept, exactly as after a sort.
//
// Passes over the row:
//   1. Checks that all logits are finite. Finds the greatest logit of the row, and the greatest
//      logit that each group of four threads reads. For log-probabilities, sums exponentials.
//      Greedy rows end here.
//   2. Without top-k and top-p: sums up the mass of each segment, a warp's part of the row.
//   2. With top-k or top-p: collects a short list, the tokens whose logit is not below the k-th
//      greatest of the groups' maxima. Without top-k, k is three quarters of the number of groups.
//      The list has at least k tokens, usually few more. It is sorted, then cut at the cutoff. It
//      has all tokens that top-p keeps, unless top_p is near 1 or the probabilities nearly equal.
//      In both cases, adds up the segments' masses until the sum exceeds u * total (u: the random
//      number). Then reads the last added segment again, to find the token in it.
// If the short list does not hold the cutoff, these passes replace pass 2:
//   2. A histogram finds the bin that holds the cutoff. Bins are 1/50 octave wide; an octave is a
//      factor of two in probability.
//   3. The bin's tokens are collected, sorted and cut; the masses of likelier tokens are summed.
//      Bins of more than kMaxCandidates tokens (ties, nearly equal logits) are searched by the bits
//      of the tokens' ranks, eleven bits in a pass: six passes, and one for the masses.
// Top log-probabilities take one more pass, for a short list of the row before bias and penalties.
// A row that has both these changes and log-probabilities takes pass 1 twice.
//
// Cost, measured on an H200 with 64 rows of 128256: 15 us greedy, 33 us without top-k and top-p,
// 38 us with top-k 50 and top-p, 114 us with top-p alone, 149 us with the histogram. A single
// row takes about as long as 64 rows, and 256 greedy rows take 41 us. Rows that are not 16-byte
// aligned are read element by element.
//
// Source: Salmon et al. 2011 (Philox); Holtzman et al. 2020 (top-p); Batcher 1968 (bitonic sort).
#include <cstdint>

#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/sample_adjust.cuh"
#include "kernels/cuda/sample_draw.cuh"
#include "kernels/cuda/sample_logprobs.cuh"
#include "kernels/cuda/sample_masses.cuh"
#include "kernels/cuda/sample_row.cuh"

namespace quire::gpu {
namespace {

constexpr float kGreedyTemperature = 1e-5F;

QUIRE_DEVICE void WriteInvalid(const SampleParams& args, int32_t index, int32_t num_logprobs) {
  if (threadIdx.x == 0) {
    args.token_ids[index] = 0;
    args.finite[index] = false;
    if (num_logprobs >= 0) {
      args.logprobs[index] = 0.0F;
    }
  }
}

QUIRE_KERNEL void QUIRE_LAUNCH_BOUNDS(kMaxSampleThreads, 1)
    SampleKernel(SampleParams args, SampleRowsView rows) {
  QUIRE_SHARED_MEMORY(shared);
  auto* workspace = reinterpret_cast<SampleWorkspace*>(shared);
  const auto index = static_cast<int32_t>(blockIdx.x);
  const SampleRow& params = rows.rows[index];
  const LogitRow row = RowOf(args, index);
  LogitAdjustment* adjustments = rows.adjustments + params.first_adjustment;
  const bool has_logprobs = params.num_logprobs >= 0;
  const bool is_adjusted = params.num_adjustments > 0;

  // ---- The raw row, as the model computed it ----
  Scan scan = {};
  Summary summary = {};
  Normalizer normalizer = {};
  if (has_logprobs) {
    const int32_t num_top =
        params.num_logprobs < row.vocab_size ? params.num_logprobs : row.vocab_size;
    scan = ScanRow<true>(row);
    summary = Summarize(scan, 0, &workspace->scratch);
    if (!summary.is_valid) {
      ClearTopLogprobs(args, index, num_top);
      WriteInvalid(args, index, params.num_logprobs);
      return;
    }
    normalizer = {summary.max_logit, LogSum(scan, summary.max_logit, workspace)};
    if (num_top > 0) {
      WriteTopLogprobs(args, row, num_top, scan.best_rank, normalizer, workspace);
    }
  }

  // ---- The adjusted row, from which a token is sampled ----
  if (is_adjusted || !has_logprobs) {
    const uint32_t num_banned =
        is_adjusted ? AdjustRow(args.logits + index * args.row_stride, adjustments, params) : 0;
    scan = ScanRow<false>(row);
    summary = Summarize(scan, num_banned, &workspace->scratch);
    if (!summary.is_valid) {
      WriteInvalid(args, index, params.num_logprobs);
      return;
    }
  }
  const TokenId token_id = params.temperature < kGreedyTemperature
                               ? TokenOf(summary.best_rank)
                               : SampleToken(row, params, scan, summary.max_logit, workspace);

  // ---- Results ----
  const float raw_logit =
      has_logprobs ? RawLogit(row, adjustments, params, token_id, &workspace->raw_logit) : 0.0F;
  if (threadIdx.x == 0) {
    args.token_ids[index] = token_id;
    args.finite[index] = true;
    if (has_logprobs) {
      args.logprobs[index] = normalizer.LogprobOf(raw_logit);
    }
  }
}

uint32_t ThreadsFor(int32_t vocab_size) {
  if (vocab_size <= 4096) {
    return 128;
  }
  return vocab_size <= 32768 ? 512 : kMaxSampleThreads;
}

}  // namespace

int Sample(const SampleParams& params, const SampleRowsView& rows, Stream stream) {
  if (params.num_rows == 0) {
    return 0;
  }
  return QUIRE_LAUNCH(SampleKernel,
                      dim3(static_cast<uint32_t>(params.num_rows)),
                      dim3(ThreadsFor(params.vocab_size)),
                      sizeof(SampleWorkspace),
                      stream,
                      params,
                      rows);
}

}  // namespace quire::gpu
