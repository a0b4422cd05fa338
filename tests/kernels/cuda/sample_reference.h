// Sampling in double, with a sort of the whole row, and how near each answer was to being another:
// what the GPU's sampling is compared with.
//
// Thread safety: pure functions.
#ifndef QUIRE_TESTS_KERNELS_CUDA_SAMPLE_REFERENCE_H_
#define QUIRE_TESTS_KERNELS_CUDA_SAMPLE_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/philox.cuh"

namespace quire::gpu {

// One row to sample, on the host. first_adjustment and num_adjustments of row are not used.
struct SampleRequest {
  SampleRow row;
  std::vector<float> logits;
  std::vector<LogitAdjustment> adjustments;
};

struct ReferenceToken {
  bool is_valid = true;
  TokenId token_id = 0;
  // The least relative change of a sum or a weight, or absolute change of an adjusted logit, that
  // would lead to another token or another set of tokens to draw from.
  double margin = std::numeric_limits<double>::infinity();
};

namespace sample_reference {

inline std::vector<double> AdjustedLogits(const SampleRequest& request) {
  std::vector<double> logits(request.logits.begin(), request.logits.end());
  for (const LogitAdjustment& adjustment : request.adjustments) {
    double& logit = logits[static_cast<size_t>(adjustment.token_id)];
    logit += adjustment.bias;
    if (adjustment.in_context != 0) {
      const double penalty = request.row.repetition_penalty;
      logit = logit > 0.0 ? logit / penalty : logit * penalty;
    }
    if (adjustment.output_count > 0) {
      logit -= double{request.row.frequency_penalty} * adjustment.output_count +
               double{request.row.presence_penalty};
    }
  }
  return logits;
}

// Token ids, likeliest first, lowest id first among equals.
inline std::vector<size_t> Ranked(const std::vector<double>& logits) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(
      order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  return order;
}

// The probabilities, relative to the likeliest token's, of the tokens kept; 0 for the others.
// Lowers margin to that of the cuts.
inline std::vector<double> KeptWeights(const SampleRow& row,
                                       const std::vector<double>& logits,
                                       const std::vector<size_t>& order,
                                       bool is_adjusted,
                                       double* margin) {
  const double max_logit = logits[order[0]];
  std::vector<double> kept;
  for (const size_t token : order) {
    const double weight = std::exp((logits[token] - max_logit) / double{row.temperature});
    if (weight != 1.0 && row.min_p > 0.0F) {
      *margin = std::min(*margin, std::abs(weight / double{row.min_p} - 1.0));
    }
    if (weight < row.min_p) {
      break;
    }
    if (row.top_k > 0 && kept.size() >= static_cast<size_t>(row.top_k)) {
      if (is_adjusted) {
        *margin = std::min(*margin, logits[order[kept.size() - 1]] - logits[token]);
      }
      break;
    }
    kept.push_back(weight);
  }

  const double total = std::accumulate(kept.begin(), kept.end(), 0.0);
  if (row.top_p < 1.0F) {
    const double limit = double{row.top_p} * total;
    double running = 0.0;
    size_t num_kept = 0;
    while (num_kept < kept.size() && (num_kept == 0 || running < limit)) {
      if (num_kept > 0) {
        *margin = std::min(*margin, (limit - running) / total);
      }
      running += kept[num_kept++];
    }
    if (running != limit) {  // a tie of numbers that fp32 holds is no matter of rounding
      *margin = std::min(*margin, (running - limit) / total);
    }
    kept.resize(num_kept);
  }
  std::vector<double> weights(logits.size(), 0.0);
  for (size_t i = 0; i < kept.size(); ++i) {
    weights[order[i]] = kept[i];
  }
  return weights;
}

}  // namespace sample_reference

// u of the draw.
inline double UniformOf(const SampleRow& row) {
  const PhiloxWords words =
      Philox4x32(row.seed, {{0, static_cast<uint32_t>(row.token_index), 0, 0}});
  return std::ldexp(static_cast<double>(words.word[0]), -32);
}

// The probabilities from which a token is drawn. REQUIRES: a valid row, not greedy.
inline std::vector<double> ReferenceProbabilities(const SampleRequest& request) {
  namespace ref = sample_reference;
  const std::vector<double> logits = ref::AdjustedLogits(request);
  double margin = 0.0;
  std::vector<double> weights = ref::KeptWeights(
      request.row, logits, ref::Ranked(logits), !request.adjustments.empty(), &margin);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) {
    weight /= total;
  }
  return weights;
}

inline ReferenceToken ReferenceSample(const SampleRequest& request) {
  namespace ref = sample_reference;
  ReferenceToken result;
  const auto is_finite = [](float logit) { return std::isfinite(logit); };
  result.is_valid = std::all_of(request.logits.begin(), request.logits.end(), is_finite);
  if (!result.is_valid) {
    return result;
  }
  const std::vector<double> logits = ref::AdjustedLogits(request);
  const std::vector<size_t> order = ref::Ranked(logits);
  const bool is_adjusted = !request.adjustments.empty();
  result.is_valid = std::isfinite(logits[order[0]]);
  if (!result.is_valid) {
    return result;
  }
  if (request.row.temperature < 1e-5F) {
    result.token_id = static_cast<TokenId>(order[0]);
    if (is_adjusted && order.size() > 1) {
      result.margin = logits[order[0]] - logits[order[1]];
    }
    return result;
  }
  const std::vector<double> weights =
      ref::KeptWeights(request.row, logits, order, is_adjusted, &result.margin);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double target = UniformOf(request.row) * total;
  double running = 0.0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0.0) {
      result.token_id = static_cast<TokenId>(i);
      if (running > 0.0) {
        result.margin = std::min(result.margin, std::abs(target - running) / total);
      }
      running += weights[i];
      if (running > target) {
        break;
      }
    }
  }
  result.margin = std::min(result.margin, std::abs(running - target) / total);
  return result;
}

// Of the row as the model gave it.
inline std::vector<double> ReferenceLogprobs(const std::vector<float>& logits) {
  const double max_logit = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) {
    sum += std::exp(logit - max_logit);
  }
  std::vector<double> logprobs;
  for (const float logit : logits) {
    logprobs.push_back(logit - max_logit - std::log(sum));
  }
  return logprobs;
}

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_SAMPLE_REFERENCE_H_
