#include "worker/runtime/prompt_scorer.h"

#include <algorithm>
#include <limits>

namespace quire {
namespace {

// Exceeds any logit of a working model, yet adding a logit to it cannot overflow.
constexpr float kForce = 1e30F;

}  // namespace

void PromptScorer::Score(const std::vector<ScheduledSlice>& slices,
                         int32_t max_rows,
                         std::vector<ScoredSlice>* scored) {
  int32_t row = 0;
  for (const ScheduledSlice& slice : slices) {
    const SequenceState& sequence = *slice.sequence;
    const int32_t num_wanted = sequence.sampling.num_prompt_logprobs;
    const int32_t num_scored =
        std::min(slice.num_tokens, sequence.num_prompt_tokens - 1 - sequence.num_computed_tokens);
    if (num_wanted >= 0 && num_scored > 0) {
      const int32_t first_position = sequence.num_computed_tokens + 1;
      PromptLogprobs prompt = {.first_position = first_position,
                               .num_top = std::min(num_wanted, model_.config().vocab_size)};
      for (int32_t done = 0; done < num_scored; done += max_rows) {
        ScoreRows(sequence,
                  first_position + done,
                  row + done,
                  std::min(max_rows, num_scored - done),
                  &prompt);
      }
      if (model_.share().rank == 0) {
        scored->push_back({.handle = slice.handle, .prompt = std::move(prompt)});
      }
    }
    row += slice.num_tokens;
  }
}

void PromptScorer::ScoreRows(const SequenceState& sequence,
                             int32_t position,
                             int32_t first_row,
                             int32_t num_rows,
                             PromptLogprobs* prompt) {
  float* logits = model_.LogitsOf(first_row, num_rows);
  if (logits == nullptr) {
    return;
  }
  const auto count = static_cast<size_t>(num_rows);
  const auto num_top = static_cast<size_t>(prompt->num_top);
  params_.resize(std::max(params_.size(), count));
  rows_.resize(std::max(rows_.size(), count));
  token_ids_.resize(std::max(token_ids_.size(), count));
  logprobs_.resize(std::max(logprobs_.size(), count));
  top_.resize(std::max(top_.size(), count * num_top));
  if (num_finite_ < count) {
    finite_ = std::make_unique<bool[]>(count);
    num_finite_ = count;
  }
  for (size_t i = 0; i < count; ++i) {
    const TokenId token = sequence.token_ids[static_cast<size_t>(position) + i];
    params_[i] = {
        .temperature = 0.0F, .logit_bias = {{token, kForce}}, .num_logprobs = prompt->num_top};
    rows_[i] = {.params = &params_[i]};
  }
  backend_.Sample({.num_rows = num_rows,
                   .vocab_size = model_.config().vocab_size,
                   .row_stride = model_.config().vocab_size,
                   .logits = logits,
                   .rows = rows_.data(),
                   .token_ids = token_ids_.data(),
                   .logprobs = logprobs_.data(),
                   .finite = finite_.get(),
                   .top_logprobs = top_.data(),
                   .top_logprobs_stride = prompt->num_top});
  for (size_t i = 0; i < count; ++i) {
    const bool is_scored = finite_[i] && token_ids_[i] == params_[i].logit_bias.front().first;
    prompt->logprobs.push_back(is_scored ? logprobs_[i] : std::numeric_limits<float>::quiet_NaN());
    for (size_t k = i * num_top; k < (i + 1) * num_top; ++k) {
      prompt->top.push_back({.token_id = top_[k].token_id, .logprob = top_[k].logprob});
    }
  }
}

}  // namespace quire
