// PromptScorer computes the log-probabilities of prompt tokens that requests ask for
// (SamplingParams::num_prompt_logprobs). The row of each token of a slice gives the log-probability
// of the prompt's next token. With several ranks, rank 0 has the results; the other ranks only help
// to compute the logits.
//
// The operation Sample computes each row: a bias above every logit makes the next token the
// greatest, and Sample reports log-probabilities of the logits without bias. So a token of a prompt
// has the same log-probability as the same token sampled after the same tokens, bit for bit.
//
// Thread safety: one caller at a time (the executor thread).
// Cost:          for each scored token a row of the output matrix, which is much more than other
//                prompt tokens cost in a small model. Memory: logits of max_rows rows at a time.
#ifndef QUIRE_WORKER_RUNTIME_PROMPT_SCORER_H_
#define QUIRE_WORKER_RUNTIME_PROMPT_SCORER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/step/step_result.h"
#include "kernels/api/kernel_backend.h"
#include "worker/model/model.h"
#include "worker/runtime/batch_builder.h"

namespace quire {

class PromptScorer {
 public:
  // Model and backend must outlive the scorer.
  PromptScorer(Model& model, KernelBackend& backend) : model_(model), backend_(backend) {}

  // Appends an entry to `scored`, on rank 0, for each slice that scores tokens, in order.
  // Overwrites the logits of the last Forward. max_rows: rows of logits for which the model has
  // memory. REQUIRES: the last Forward computed these slices, in this order.
  void Score(const std::vector<ScheduledSlice>& slices,
             int32_t max_rows,
             std::vector<ScoredSlice>* scored);

 private:
  // Scores num_rows tokens of the prompt, the first of them at `position`. first_row: the row of
  // the token before `position`.
  void ScoreRows(const SequenceState& sequence,
                 int32_t position,
                 int32_t first_row,
                 int32_t num_rows,
                 PromptLogprobs* prompt);

  Model& model_;
  KernelBackend& backend_;
  // Scratch, reused from call to call; one element per row, several in top_.
  std::vector<SamplingParams> params_;
  std::vector<SamplingRow> rows_;
  std::vector<TokenId> token_ids_;
  std::vector<float> logprobs_;
  std::unique_ptr<bool[]> finite_;  // an array, not vector<bool>: the operation needs a bool*
  size_t num_finite_ = 0;
  std::vector<SampledLogprob> top_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_PROMPT_SCORER_H_
