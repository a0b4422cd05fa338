// kernels/api/sampling.h defines the order of the steps.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kernels/reference/philox.h"
#include "kernels/reference/reference_ops.h"

namespace quire::reference {
namespace {

constexpr double kExcluded = -std::numeric_limits<double>::infinity();

std::vector<double> LogSoftmax(const std::vector<double>& logits) {
  double max_logit = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (double logit : logits) {
    sum += std::exp(logit - max_logit);
  }
  std::vector<double> result;
  result.reserve(logits.size());
  for (double logit : logits) {
    result.push_back(logit - max_logit - std::log(sum));
  }
  return result;
}

// Returns all token ids, likeliest first; among equals the lowest id comes first.
std::vector<TokenId> RankedTokens(const std::vector<double>& values) {
  std::vector<TokenId> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<TokenId>(i);
  }
  std::stable_sort(order.begin(), order.end(), [&values](TokenId a, TokenId b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  return order;
}

void ApplyBiasAndBans(const SamplingRow& row, std::vector<double>& logits) {
  for (const auto& [token, bias] : row.params->logit_bias) {
    logits[static_cast<size_t>(token)] += bias;
  }
  if (row.is_below_min_tokens()) {
    for (TokenId token : row.params->banned_before_min_tokens) {
      logits[static_cast<size_t>(token)] = kExcluded;
    }
  }
}

void ApplyPenalties(const SamplingRow& row, std::vector<double>& logits) {
  std::map<TokenId, int> output_counts;
  std::map<TokenId, int> all_counts;
  for (TokenId token : row.prompt_token_ids) {
    ++all_counts[token];
  }
  for (TokenId token : row.output_token_ids) {
    ++all_counts[token];
    ++output_counts[token];
  }
  for (const auto& [token, count] : all_counts) {
    double& logit = logits[static_cast<size_t>(token)];
    double penalty = row.params->repetition_penalty;
    logit = logit > 0.0 ? logit / penalty : logit * penalty;
  }
  for (const auto& [token, count] : output_counts) {
    logits[static_cast<size_t>(token)] -=
        double{row.params->frequency_penalty} * count + row.params->presence_penalty;
  }
}

// Applies min-p, top-k and top-p in this order, each to the tokens that the earlier rules kept.
// Returns the weights of all tokens; 0 for each token that is not kept.
std::vector<double> KeptWeights(const SamplingParams& params, std::vector<double> logits) {
  for (double& logit : logits) {
    logit /= params.temperature;
  }
  std::vector<TokenId> order = RankedTokens(logits);
  double max_logit = logits[static_cast<size_t>(order[0])];

  std::vector<double> kept;  // exp(logit - max), likeliest token first
  for (TokenId token : order) {
    double relative = std::exp(logits[static_cast<size_t>(token)] - max_logit);
    bool below_min_p = relative < params.min_p;
    bool beyond_top_k = params.top_k > 0 && std::cmp_greater_equal(kept.size(), params.top_k);
    if (below_min_p || beyond_top_k) {
      break;
    }
    kept.push_back(relative);
  }

  double total = 0.0;
  for (double relative : kept) {
    total += relative;
  }
  double running = 0.0;
  size_t num_kept = 0;
  while (num_kept < kept.size() && (num_kept == 0 || running < params.top_p * total)) {
    running += kept[num_kept++];
  }

  std::vector<double> weights(logits.size(), 0.0);
  for (size_t i = 0; i < num_kept; ++i) {
    weights[static_cast<size_t>(order[i])] = kept[i];
  }
  return weights;
}

TokenId Draw(const std::vector<double>& weights, double u) {
  double total = 0.0;
  for (double weight : weights) {
    total += weight;
  }
  double running = 0.0;
  TokenId last_kept = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0.0) {
      running += weights[i];
      last_kept = static_cast<TokenId>(i);
      if (running > u * total) {
        break;
      }
    }
  }
  return last_kept;
}

void ReportLogprobs(const SampleParams& p, int32_t i, const std::vector<double>& logits) {
  std::vector<double> logprobs = LogSoftmax(logits);
  p.logprobs[i] = static_cast<float>(logprobs[static_cast<size_t>(p.token_ids[i])]);
  std::vector<TokenId> order = RankedTokens(logits);
  int32_t wanted = std::min(p.rows[i].params->num_logprobs, p.vocab_size);
  for (int32_t k = 0; k < wanted; ++k) {
    TokenId token = order[static_cast<size_t>(k)];
    p.top_logprobs[i * p.top_logprobs_stride + k] = {
        token, static_cast<float>(logprobs[static_cast<size_t>(token)])};
  }
}

}  // namespace

std::vector<double> SamplingWeights(const SamplingRow& row, std::span<const float> logits) {
  if (!std::all_of(
          logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); })) {
    return {};
  }
  std::vector<double> adjusted(logits.begin(), logits.end());
  ApplyBiasAndBans(row, adjusted);
  ApplyPenalties(row, adjusted);
  if (!std::isfinite(*std::max_element(adjusted.begin(), adjusted.end()))) {
    return {};  // bias and bans have excluded every token
  }
  if (row.params->is_greedy()) {
    std::vector<double> weights(adjusted.size(), 0.0);
    weights[static_cast<size_t>(RankedTokens(adjusted)[0])] = 1.0;
    return weights;
  }
  return KeptWeights(*row.params, std::move(adjusted));
}

double UniformOf(const SamplingRow& row) {
  auto words =
      Philox4x32(row.params->seed, {0, static_cast<uint32_t>(row.output_token_ids.size()), 0, 0});
  return std::ldexp(static_cast<double>(words[0]), -32);
}

void Sample(const SampleParams& p) {
  for (int32_t i = 0; i < p.num_rows; ++i) {
    std::span<const float> logits(p.logits + i * p.row_stride, static_cast<size_t>(p.vocab_size));
    std::vector<double> weights = SamplingWeights(p.rows[i], logits);
    p.finite[i] = !weights.empty();
    p.token_ids[i] = 0;
    p.logprobs[i] = 0.0F;
    if (p.finite[i]) {
      p.token_ids[i] = Draw(weights, UniformOf(p.rows[i]));
      ReportLogprobs(p, i, std::vector<double>(logits.begin(), logits.end()));
    }
  }
}

}  // namespace quire::reference
