// Sampler samples one token for each row of logits, with the sampling parameters of the row's
// sequence. With several ranks only rank 0 has the logits, so rank 0 samples and broadcasts the
// tokens. The other ranks have no log-probabilities.
//
// Thread safety: one caller at a time (the executor thread).
// Cost:          allocates only if there are more rows than in every earlier call, and for the
//                lists of top log-probabilities that requests ask for.
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

  // Tells the backend which rows Sample will sample from the next batch's logits, so that the
  // backend can sample as part of the step.
  void Announce(const std::vector<ScheduledSlice>& slices);
  // `logits` is [sampled slices, vocab_size] on rank 0 and ignored on other ranks; the call
  // overwrites it. Row i belongs to the i-th sampled slice; slices that are not sampled have no
  // row. Appends one entry per row to `sampled`.
  void Sample(const std::vector<ScheduledSlice>& slices,
              float* logits,
              std::vector<SampledToken>* sampled);

 private:
  // Gives the sampling kernel's outputs room for this many rows.
  void Reserve(size_t num_rows);
  // Fills rows_ and handles_. Returns the greatest num_logprobs of any row.
  int32_t CollectRows(const std::vector<ScheduledSlice>& slices);
  void SampleRows(float* logits, int64_t top_stride);
  // Broadcasts token_ids_ and finite_ from rank 0.
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
  std::unique_ptr<bool[]> finite_;  // an array, not vector<bool>: the kernel needs a bool*
  size_t num_finite_ = 0;
  std::vector<SampledLogprob> top_logprobs_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_SAMPLER_H_
