// Sampler turns rows of logits into tokens through the backend, with each sequence's parameters. Of
// several ranks the first one samples, since it has the logits, and tells the others the tokens;
// they have no log-probabilities.
//
// Thread safety: one caller at a time (the executor thread).
// Cost:          no allocation once it has seen its most rows, but for the lists of likeliest
//                tokens where they are asked for.
#ifndef QUIRE_WORKER_RUNTIME_SAMPLER_H_
#define QUIRE_WORKER_RUNTIME_SAMPLER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/rank_share.h"
#include "common/step/step_result.h"
#include "kernels/api/kernel_backend.h"
#include "worker/runtime/batch_builder.h"

namespace quire {

class Sampler {
 public:
  // The backend must outlive the sampler.
  Sampler(KernelBackend& backend, int32_t vocab_size, const RankShare& share);

  // Row i of `logits` belongs to the i-th sampled slice; slices that are not sampled have no row.
  // Overwrites logits [sampled slices, vocab_size], which are rank 0's alone. Appends one entry a
  // row to `sampled`.
  void Sample(const std::vector<ScheduledSlice>& slices,
              float* logits,
              std::vector<SampledToken>* sampled);

 private:
  // Grows the outputs of the kernel to this many rows.
  void Reserve(size_t num_rows);
  // Fills rows_ and handles_; returns the most likeliest tokens that any row asks for.
  int32_t CollectRows(const std::vector<ScheduledSlice>& slices);
  void SampleRows(float* logits, int64_t top_stride);
  // token_ids_ and finite_, from rank 0 to the others.
  void Share();
  SampledToken Result(size_t row, int64_t top_stride) const;

  KernelBackend& backend_;
  const int32_t vocab_size_;
  const int32_t rank_;
  const int32_t num_ranks_;
  std::vector<SamplingRow> rows_;
  std::vector<SequenceHandle> handles_;
  std::vector<TokenId> token_ids_;
  std::vector<float> logprobs_;
  std::unique_ptr<bool[]> finite_;  // vector<bool> has no bools to point at
  size_t num_finite_ = 0;
  std::vector<SampledLogprob> top_logprobs_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_SAMPLER_H_
