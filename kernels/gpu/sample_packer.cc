#include "kernels/gpu/sample_packer.h"

#include <algorithm>
#include <limits>

namespace quire {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

// Merges the entries from `first` on, so that each token id has one entry, in ascending order.
void MergeEqualTokens(std::vector<gpu::LogitAdjustment>* all, size_t first) {
  const auto begin = all->begin() + static_cast<std::ptrdiff_t>(first);
  std::stable_sort(
      begin, all->end(), [](const auto& a, const auto& b) { return a.token_id < b.token_id; });
  auto last = begin;
  for (auto next = begin; next != all->end(); ++next) {
    if (next == begin) {
      continue;
    }
    if (next->token_id != last->token_id) {
      *++last = *next;
      continue;
    }
    last->bias += next->bias;
    last->output_count += next->output_count;
    last->in_context |= next->in_context;
  }
  if (begin != all->end()) {
    all->erase(last + 1, all->end());
  }
}

}  // namespace

void SamplePacker::Pack(const SampleParams& params) {
  rows_.clear();
  adjustments_.clear();
  for (int32_t i = 0; i < params.num_rows; ++i) {
    PackRow(params.rows[i]);
  }
}

void SamplePacker::PackRow(const SamplingRow& row) {
  const SamplingParams& params = *row.params;
  const size_t first = adjustments_.size();
  AppendAdjustments(row);
  MergeEqualTokens(&adjustments_, first);
  rows_.push_back({.temperature = params.temperature,
                   .top_p = params.top_p,
                   .min_p = params.min_p,
                   .top_k = params.top_k,
                   .repetition_penalty = params.repetition_penalty,
                   .presence_penalty = params.presence_penalty,
                   .frequency_penalty = params.frequency_penalty,
                   .token_index = static_cast<int32_t>(row.output_token_ids.size()),
                   .num_logprobs = params.num_logprobs,
                   .first_adjustment = static_cast<int32_t>(first),
                   .num_adjustments = static_cast<int32_t>(adjustments_.size() - first),
                   .seed = params.seed});
}

void SamplePacker::AppendAdjustments(const SamplingRow& row) {
  const SamplingParams& params = *row.params;
  for (const auto& [token_id, bias] : params.logit_bias) {
    adjustments_.push_back({.token_id = token_id, .bias = bias});
  }
  if (row.is_below_min_tokens()) {
    for (TokenId token_id : params.banned_before_min_tokens) {
      adjustments_.push_back({.token_id = token_id, .bias = kBanned});
    }
  }
  if (!params.has_penalties()) {
    return;
  }
  for (TokenId token_id : row.prompt_token_ids) {
    adjustments_.push_back({.token_id = token_id, .in_context = 1});
  }
  for (TokenId token_id : row.output_token_ids) {
    adjustments_.push_back({.token_id = token_id, .output_count = 1, .in_context = 1});
  }
}

}  // namespace quire
