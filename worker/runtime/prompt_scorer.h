// PromptScorer computes the log-probabilities of prompt tokens that requests ask for
// (SamplingParams::num_prompt_logprobs). A token's row of logits gives the log-probability of the
// prompt's next token. With several ranks, rank 0 has the results; the other ranks only help to
// compute the logits.
//
// KernelBackend::Sample computes each log-probability: a large bias makes it choose the prompt's
// next token, and it reports the log-probability of that token without bias. So a prompt token has
// the same log-probability, bit for bit, as if it had been sampled after the same tokens.
//
// Thread safety: one caller at a time (the executor thread).
// Cost:          for each scored token a product with the whole output matrix, which is much more
//                than other prompt tokens cost in a small model. Memory: max_rows rows of logits.
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

  // On rank 0, appends to `scored` an entry for each slice that scores tokens, in order. Overwrites
  // the logits of the last Model::Run. max_rows: rows of logits for which the model has memory.
  // REQUIRES: the last Run computed these slices, in this order.
  void Score(const std::vector<ScheduledSlice>& slices,
             int32_t max_rows,
             std::vector<ScoredSlice>* scored);

 private:
  // Scores num_rows tokens of the prompt, the first of them at `position`. first_row: row of the
  // token before `position`, in the batch of the last Run.
  void ScoreRows(const SequenceState& sequence,
                 int32_t position,
                 int32_t first_row,
                 int32_t num_rows,
                 PromptLogprobs* prompt);

  Model& model_;
  KernelBackend& backend_;
  // Scratch, reused from call to call; one element per row, but num_top elements per row in top_.
  std::vector<SamplingParams> params_;
  std::vector<SamplingRow> rows_;
  std::vector<TokenId> token_ids_;
  std::vector<float> logprobs_;
  std::unique_ptr<bool[]> finite_;  // an array, not vector<bool>: Sample needs a bool*
  size_t num_finite_ = 0;
  std::vector<SampledLogprob> top_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_PROMPT_SCORER_H_
