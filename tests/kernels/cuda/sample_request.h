// Rows to sample, as requests of kernels/api, for the kernel and for kernels/reference.
//
// Usage: Drawing makes a request from logits, and a test changes its params. SampleOne and
// ReferenceRow return its token.
#ifndef QUIRE_TESTS_KERNELS_CUDA_SAMPLE_REQUEST_H_
#define QUIRE_TESTS_KERNELS_CUDA_SAMPLE_REQUEST_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/gpu/sample_packer.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/device_array.h"

namespace quire::gpu {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Relative error that the kernel's sums and weights may have.
inline constexpr double kMargin = 1e-5;

// One row to sample, on the host.
struct SampleRequest {
  SamplingParams params;
  std::vector<float> logits;
  std::vector<TokenId> prompt;
  std::vector<TokenId> output;

  SamplingRow row() const {
    return {.params = &params, .prompt_token_ids = prompt, .output_token_ids = output};
  }
};

// Fills the request's fields so that they give these adjustments.
inline void Adjust(SampleRequest* request, const std::vector<LogitAdjustment>& adjustments) {
  for (const LogitAdjustment& adjustment : adjustments) {
    if (adjustment.bias == -kInfinity) {
      request->params.banned_before_min_tokens.push_back(adjustment.token_id);
      request->params.min_tokens = std::numeric_limits<int32_t>::max();
    } else if (adjustment.bias != 0.0F) {
      request->params.logit_bias.emplace_back(adjustment.token_id, adjustment.bias);
    }
    request->output.insert(
        request->output.end(), static_cast<size_t>(adjustment.output_count), adjustment.token_id);
    if (adjustment.in_context != 0 && adjustment.output_count == 0) {
      request->prompt.push_back(adjustment.token_id);
    }
  }
}

struct SampledRow {
  bool finite = false;
  TokenId token_id = -1;
  float logprob = 0.0F;
  std::vector<std::pair<TokenId, float>> top;

  friend bool operator==(const SampledRow&, const SampledRow&) = default;
};

// Samples all rows in one call, `padding` floats apart. Checks that the kernel writes only the
// outputs that were asked for.
inline std::vector<SampledRow> SampleRows(const std::vector<SampleRequest>& requests,
                                          int64_t padding = 3) {
  constexpr uint32_t kPoison = 0xFFFFFFFF;
  constexpr int64_t kTopStride = 43;
  constexpr TokenId kUntouched = -77;  // what a rank of no token does not come out as
  const auto n = static_cast<int64_t>(requests.size());
  const auto vocab_size = static_cast<int64_t>(requests[0].logits.size());
  const int64_t stride = vocab_size + padding;
  // The last row has no padding behind it.
  std::vector<float> host_logits(static_cast<size_t>(n * stride - padding),
                                 __uint_as_float(kPoison));
  std::vector<SamplingRow> host_rows;
  for (const SampleRequest& request : requests) {
    std::copy(request.logits.begin(),
              request.logits.end(),
              host_logits.begin() + std::ssize(host_rows) * stride);
    host_rows.push_back(request.row());
  }
  DeviceArray<float> logits(host_logits);
  DeviceArray<TokenId> token_ids(n);
  DeviceArray<float> logprobs(n);
  DeviceArray<uint8_t> finite(n);
  DeviceArray<SampledLogprob> top_logprobs(std::vector<SampledLogprob>(
      static_cast<size_t>(n * kTopStride), SampledLogprob{.token_id = kUntouched}));
  const SampleParams params = {.num_rows = static_cast<int32_t>(n),
                               .vocab_size = static_cast<int32_t>(vocab_size),
                               .row_stride = stride,
                               .logits = logits.data(),
                               .rows = host_rows.data(),
                               .token_ids = token_ids.data(),
                               .logprobs = logprobs.data(),
                               .finite = reinterpret_cast<bool*>(finite.data()),
                               .top_logprobs = top_logprobs.data(),
                               .top_logprobs_stride = kTopStride};
  SamplePacker packer;
  packer.Pack(params);
  DeviceArray<SampleRow> rows(packer.rows());
  DeviceArray<LogitAdjustment> adjustments(packer.adjustments());

  EXPECT_EQ(Sample(params, {.rows = rows.data(), .adjustments = adjustments.data()}, nullptr), 0);

  const auto all_logits = logits.ToHost();
  const auto all_tokens = token_ids.ToHost();
  const auto all_logprobs = logprobs.ToHost();
  const auto all_finite = finite.ToHost();
  const auto all_top = top_logprobs.ToHost();
  std::vector<SampledRow> results;
  for (int64_t r = 0; r < n; ++r) {
    const auto i = static_cast<size_t>(r);
    EXPECT_TRUE(all_finite[i] == 0 || all_finite[i] == 1);
    SampledRow result = {all_finite[i] != 0, all_tokens[i], 0.0F, {}};
    const int32_t num_logprobs = requests[i].params.num_logprobs;
    if (num_logprobs >= 0) {
      result.logprob = all_logprobs[i];
    } else {
      EXPECT_EQ(__float_as_uint(all_logprobs[i]), kPoison) << "written though not wanted";
    }
    const int64_t num_top = std::min<int64_t>(std::max(num_logprobs, 0), vocab_size);
    for (int64_t k = 0; k < kTopStride; ++k) {
      const SampledLogprob& top = all_top[static_cast<size_t>(r * kTopStride + k)];
      if (k < num_top) {
        result.top.emplace_back(top.token_id, top.logprob);
      } else {
        EXPECT_EQ(top.token_id, kUntouched) << "written beyond what is wanted";
      }
    }
    for (int64_t p = r * stride + vocab_size; p < r * stride + stride && r + 1 < n; ++p) {
      EXPECT_EQ(__float_as_uint(all_logits[static_cast<size_t>(p)]), kPoison) << "padding";
    }
    results.push_back(std::move(result));
  }
  return results;
}

inline SampledRow SampleOne(const SampleRequest& request) { return SampleRows({request})[0]; }

inline SampleRequest Greedy(std::vector<float> logits, int32_t num_logprobs = -1) {
  return {.params = {.temperature = 0.0F, .num_logprobs = num_logprobs},
          .logits = std::move(logits)};
}

inline SampleRequest Drawing(std::vector<float> logits, uint64_t seed = 1) {
  return {.params = {.temperature = 1.0F, .seed = seed}, .logits = std::move(logits)};
}

// Copies of a request with other seeds.
inline std::vector<SampleRequest> WithSeeds(const SampleRequest& request, int count) {
  std::vector<SampleRequest> requests(static_cast<size_t>(count), request);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].params.seed = 1000 + i;
  }
  return requests;
}

// Samples by the reference. The result's top has num_logprobs entries.
inline SampledRow ReferenceRow(const SampleRequest& request) {
  const auto vocab_size = static_cast<int32_t>(request.logits.size());
  std::vector<float> logits = request.logits;
  const SamplingRow row = request.row();
  SampledRow result;
  std::vector<SampledLogprob> top(
      static_cast<size_t>(std::clamp(request.params.num_logprobs, 0, vocab_size)));
  reference::Sample({.num_rows = 1,
                     .vocab_size = vocab_size,
                     .row_stride = vocab_size,
                     .logits = logits.data(),
                     .rows = &row,
                     .token_ids = &result.token_id,
                     .logprobs = &result.logprob,
                     .finite = &result.finite,
                     .top_logprobs = top.data(),
                     .top_logprobs_stride = std::ssize(top)});
  for (const SampledLogprob& entry : top) {
    result.top.emplace_back(entry.token_id, entry.logprob);
  }
  return result;
}

// Log-probabilities of all tokens, indexed by token id.
inline std::vector<float> ReferenceLogprobs(const std::vector<float>& logits) {
  std::vector<float> logprobs(logits.size());
  const auto vocab_size = static_cast<int32_t>(logits.size());
  for (const auto& [token_id, logprob] : ReferenceRow(Greedy(logits, vocab_size)).top) {
    logprobs[static_cast<size_t>(token_id)] = logprob;
  }
  return logprobs;
}

// Whether the draw gives this token if its running sums are off by up to kMargin.
inline bool IsDrawn(const SampleRequest& request, TokenId token_id) {
  const auto token = static_cast<size_t>(token_id);
  const std::vector<double> weights = reference::SamplingWeights(request.row(), request.logits);
  if (weights.empty() || weights[token] == 0.0) {
    return false;
  }
  const auto at = weights.begin() + token_id;
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double before = std::accumulate(weights.begin(), at, 0.0) / total;
  const double u = reference::UniformOf(request.row());
  return before - kMargin < u && u < before + *at / total + kMargin;
}

// Whether the reference's answer is this token, or would be if weights and sums, and the adjusted
// logit of the token, were off by kMargin.
inline bool IsNearlyTheAnswer(const SampleRequest& request, TokenId token_id) {
  const bool is_adjusted = request.params.has_penalties() || !request.params.logit_bias.empty();
  for (const double top_p_error : {0.0, -kMargin, kMargin}) {
    for (const double min_p_error : {0.0, -kMargin, kMargin}) {
      for (const double bias : {0.0, kMargin}) {
        SampleRequest other = request;
        if (request.params.top_p < 1.0F) {
          other.params.top_p *= static_cast<float>(1.0 + top_p_error);
        }
        other.params.min_p *= static_cast<float>(1.0 + min_p_error);
        if (is_adjusted) {
          other.params.logit_bias.emplace_back(token_id, static_cast<float>(bias));
        }
        if (IsDrawn(other, token_id)) {
          return true;
        }
      }
    }
  }
  return false;
}

// A token that differs from the reference's is a failure, unless IsNearlyTheAnswer. Returns the
// number of such near tokens.
inline int CountNarrowDifferences(const std::vector<SampleRequest>& requests, int64_t padding = 3) {
  const std::vector<SampledRow> rows = SampleRows(requests, padding);
  int narrow = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampledRow expected = ReferenceRow(requests[i]);
    EXPECT_EQ(rows[i].finite, expected.finite) << "row " << i;
    if (rows[i].token_id == expected.token_id) {
      continue;
    }
    const SamplingParams& params = requests[i].params;
    EXPECT_TRUE(IsNearlyTheAnswer(requests[i], rows[i].token_id))
        << "row " << i << " of vocabulary " << requests[i].logits.size() << ": token "
        << rows[i].token_id << " and not " << expected.token_id << "; temperature "
        << params.temperature << " top_k " << params.top_k << " top_p " << params.top_p << " min_p "
        << params.min_p << " biases " << params.logit_bias.size();
    ++narrow;
  }
  return narrow;
}

}  // namespace quire::gpu

#endif  // QUIRE_TESTS_KERNELS_CUDA_SAMPLE_REQUEST_H_
