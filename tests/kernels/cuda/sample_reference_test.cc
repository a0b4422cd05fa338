// sample_reference.h against the reference backend: what the GPU's sampling is compared with means
// the same as kernels/api/sampling.h. Host code alone; needs quire::kernels_reference, which the
// GPU tests do without.
#include "tests/kernels/cuda/sample_reference.h"

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/reference/reference_ops.h"

namespace quire::gpu {
namespace {

// The same row in the terms of kernels/api/sampling.h.
struct ApiRow {
  SamplingParams params;
  std::vector<TokenId> prompt;
  std::vector<TokenId> output;
  std::vector<float> logits;
};

ApiRow RandomRow(size_t vocab, std::mt19937& generator) {
  const auto one_of = [&](std::initializer_list<float> values) {
    return values.begin()[generator() % values.size()];
  };
  ApiRow row;
  std::normal_distribution<float> normal(0.0F, one_of({0.3F, 2.0F, 8.0F}));
  for (size_t i = 0; i < vocab; ++i) {
    row.logits.push_back(normal(generator));
  }
  row.params.temperature = one_of({0.0F, 0.2F, 1.0F, 3.0F});
  row.params.top_k = static_cast<int32_t>(one_of({0, 0, 1, 2, 50}));
  row.params.top_p = one_of({1.0F, 0.99F, 0.5F, 0.001F});
  row.params.min_p = one_of({0.0F, 0.0F, 0.01F, 0.5F});
  row.params.repetition_penalty = one_of({1.0F, 1.5F, 0.8F});
  row.params.frequency_penalty = one_of({0.0F, 0.5F, -0.5F});
  row.params.presence_penalty = one_of({0.0F, 1.0F});
  row.params.seed = generator();
  row.params.num_logprobs = 0;
  for (int i = 0; i < 30; ++i) {
    auto& tokens = i % 2 == 0 ? row.prompt : row.output;
    tokens.push_back(static_cast<TokenId>(generator() % vocab));
  }
  for (TokenId token_id = 1; token_id < static_cast<TokenId>(vocab); token_id += 11) {
    row.params.logit_bias.emplace_back(token_id, one_of({3.0F, -3.0F}));
  }
  row.params.min_tokens = static_cast<int32_t>(generator() % 30);
  row.params.banned_before_min_tokens = {0, 1, static_cast<TokenId>(vocab) - 1};
  return row;
}

SampleRequest ToRequest(const ApiRow& row) {
  const SamplingParams& params = row.params;
  SampleRequest request;
  request.logits = row.logits;
  request.row = {.temperature = params.temperature,
                 .top_p = params.top_p,
                 .min_p = params.min_p,
                 .top_k = params.top_k,
                 .repetition_penalty = params.repetition_penalty,
                 .presence_penalty = params.presence_penalty,
                 .frequency_penalty = params.frequency_penalty,
                 .token_index = static_cast<int32_t>(row.output.size()),
                 .seed = params.seed};
  std::map<TokenId, LogitAdjustment> adjustments;
  const auto adjustment_of = [&](TokenId token_id) -> LogitAdjustment& {
    adjustments[token_id].token_id = token_id;
    return adjustments[token_id];
  };
  for (const auto& [token_id, bias] : params.logit_bias) {
    adjustment_of(token_id).bias += bias;
  }
  if (static_cast<int32_t>(row.output.size()) < params.min_tokens) {
    for (const TokenId token_id : params.banned_before_min_tokens) {
      adjustment_of(token_id).bias = -std::numeric_limits<float>::infinity();
    }
  }
  for (const TokenId token_id : row.prompt) {
    adjustment_of(token_id).in_context = 1;
  }
  for (const TokenId token_id : row.output) {
    adjustment_of(token_id).in_context = 1;
    ++adjustment_of(token_id).output_count;
  }
  for (const auto& [token_id, adjustment] : adjustments) {
    request.adjustments.push_back(adjustment);
  }
  return request;
}

struct ApiResult {
  TokenId token_id = -1;
  float logprob = 0.0F;
  bool finite = false;
};

ApiResult SampleByBackend(const ApiRow& row) {
  SamplingRow sampling_row;
  sampling_row.params = &row.params;
  sampling_row.prompt_token_ids = row.prompt;
  sampling_row.output_token_ids = row.output;
  std::vector<float> logits = row.logits;
  ApiResult result;
  reference::Sample({.num_rows = 1,
                     .vocab_size = static_cast<int32_t>(logits.size()),
                     .row_stride = static_cast<int64_t>(logits.size()),
                     .logits = logits.data(),
                     .rows = &sampling_row,
                     .token_ids = &result.token_id,
                     .logprobs = &result.logprob,
                     .finite = &result.finite});
  return result;
}

TEST(SampleReferenceTest, MeansWhatTheReferenceBackendMeans) {
  std::mt19937 generator(7);
  int num_invalid = 0;
  for (int32_t i = 0; i < 2000; ++i) {
    const size_t vocab = 2 + generator() % 200;
    const ApiRow row = RandomRow(vocab, generator);

    const ReferenceToken token = ReferenceSample(ToRequest(row));
    const ApiResult expected = SampleByBackend(row);

    ASSERT_EQ(token.is_valid, expected.finite);
    ASSERT_EQ(token.token_id, expected.token_id) << "request " << i;
    if (expected.finite) {
      const std::vector<double> logprobs = ReferenceLogprobs(row.logits);
      ASSERT_FLOAT_EQ(static_cast<float>(logprobs[static_cast<size_t>(token.token_id)]),
                      expected.logprob);
    }
    num_invalid += expected.finite ? 0 : 1;
  }
  EXPECT_GT(num_invalid, 0);  // vocabularies of two, banned
}

}  // namespace
}  // namespace quire::gpu
