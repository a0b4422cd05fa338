// Sampling of the CPU backend: against the distributions that Hugging Face's logits processors give
// (testdata/sampling.txt), against the reference, and what kernels/api/sampling.h promises.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/philox.h"
#include "kernels/reference/reference_backend.h"
#include "tests/kernels/cpu_backends.h"

namespace quire {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct SampledRow {
  TokenId token_id = -1;
  float logprob = -1.0F;
  bool finite = false;
  std::vector<std::pair<TokenId, float>> top;

  friend bool operator==(const SampledRow&, const SampledRow&) = default;
};

// One row to sample. Keeps what SamplingRow points at.
struct Request {
  SamplingParams params;
  std::vector<TokenId> prompt;
  std::vector<TokenId> output;
  std::vector<float> logits;
};

std::vector<SampledRow> Sample(KernelBackend& backend, const std::vector<Request>& requests) {
  constexpr int64_t kTopStride = kMaxLogprobs + 1;
  const int64_t vocab = static_cast<int64_t>(requests[0].logits.size());
  const int64_t stride = vocab + 3;  // rows need not be adjacent
  const size_t n = requests.size();
  std::vector<float> logits(n * static_cast<size_t>(stride), 77.0F);
  std::vector<SamplingRow> rows;
  for (size_t i = 0; i < n; ++i) {
    const Request& r = requests[i];
    std::copy(r.logits.begin(), r.logits.end(), logits.begin() + static_cast<int64_t>(i) * stride);
    rows.push_back({&r.params, r.prompt, r.output});
  }
  std::vector<TokenId> tokens(n, -1);
  std::vector<float> logprobs(n, -1.0F);
  std::vector<SampledLogprob> top(n * kTopStride, {-7, 7.0F});
  const auto finite = std::make_unique<bool[]>(n);
  backend.Sample({.num_rows = static_cast<int32_t>(n),
                  .vocab_size = static_cast<int32_t>(vocab),
                  .row_stride = stride,
                  .logits = logits.data(),
                  .rows = rows.data(),
                  .token_ids = tokens.data(),
                  .logprobs = logprobs.data(),
                  .finite = finite.get(),
                  .top_logprobs = top.data(),
                  .top_logprobs_stride = kTopStride});
  std::vector<SampledRow> results;
  for (size_t i = 0; i < n; ++i) {
    SampledRow result = {tokens[i], logprobs[i], finite[i], {}};
    for (int64_t k = 0; k < kTopStride; ++k) {
      const SampledLogprob& entry = top[i * kTopStride + static_cast<size_t>(k)];
      if (k < requests[i].params.num_logprobs) {
        result.top.emplace_back(entry.token_id, entry.logprob);
      } else {
        EXPECT_EQ(entry.token_id, -7) << "written beyond the row's room";
      }
    }
    for (int64_t j = vocab; j < stride; ++j) {
      EXPECT_EQ(logits[i * static_cast<size_t>(stride) + static_cast<size_t>(j)], 77.0F);
    }
    results.push_back(std::move(result));
  }
  return results;
}

SampledRow SampleOne(KernelBackend& backend, const Request& request) {
  return Sample(backend, {request})[0];
}

std::vector<float> RandomLogits(size_t count, uint32_t seed, float scale) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution(0.0F, 1.0F);
  std::vector<float> values(count);
  for (float& value : values) {
    value = scale * distribution(generator);
  }
  return values;
}

SamplingParams Greedy(int32_t num_logprobs) {
  SamplingParams params;
  params.temperature = 0.0F;
  params.num_logprobs = num_logprobs;
  return params;
}

TEST(PhiloxTest, MatchesThePublishedVectors) {
  // kat_vectors of the Random123 distribution, philox4x32 with 10 rounds.
  EXPECT_EQ(Philox4x32(0, {0, 0, 0, 0}),
            (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32(~uint64_t{0}, {~0U, ~0U, ~0U, ~0U}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

class SamplingTest : public CpuBackendTest {};

TEST_P(SamplingTest, GreedyTakesTheGreatestAndTheLowestIdAmongEquals) {
  auto backend = MakeBackend(2);
  for (const size_t vocab : {1U, 2U, 15U, 16U, 63U, 64U, 65U, 1000U}) {
    Request request = {.params = Greedy(-1), .logits = std::vector<float>(vocab, -3.0F)};
    EXPECT_EQ(SampleOne(*backend, request).token_id, 0) << vocab;
    for (size_t best = 0; best < vocab; best += 1 + vocab / 17) {
      request.logits.assign(vocab, -3.0F);
      request.logits[best] = 1.5F;
      request.logits[vocab - 1] = 1.5F;

      EXPECT_EQ(SampleOne(*backend, request).token_id, static_cast<TokenId>(best)) << vocab;
    }
  }
}

TEST_P(SamplingTest, LogprobsAreAccurateOnALargeVocabulary) {
  auto backend = MakeBackend(2);
  for (const float scale : {0.1F, 3.0F, 30.0F}) {
    Request request = {.params = Greedy(20), .logits = RandomLogits(128'001, 1, scale)};
    double sum = 0.0;
    const double greatest = *std::max_element(request.logits.begin(), request.logits.end());
    for (const float logit : request.logits) {
      sum += std::exp(logit - greatest);
    }

    const SampledRow row = SampleOne(*backend, request);

    const auto logprob = [&](TokenId token) {
      return request.logits[static_cast<size_t>(token)] - greatest - std::log(sum);
    };
    EXPECT_NEAR(row.logprob, logprob(row.token_id), 1e-5);
    std::vector<TokenId> order(request.logits.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<TokenId>(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
      return request.logits[static_cast<size_t>(a)] > request.logits[static_cast<size_t>(b)];
    });
    for (size_t k = 0; k < 20; ++k) {
      EXPECT_EQ(row.top[k].first, order[k]);
      EXPECT_NEAR(row.top[k].second, logprob(order[k]), 1e-5);
    }
  }
}

TEST_P(SamplingTest, LogprobsAreOfTheRowAsTheModelGaveIt) {
  auto backend = MakeBackend(1);
  Request request = {.params = Greedy(3), .logits = RandomLogits(50, 2, 2.0F)};
  const SampledRow plain = SampleOne(*backend, request);
  const TokenId other = (plain.top[2].first);
  request.params.logit_bias = {{other, 50.0F}};

  const SampledRow biased = SampleOne(*backend, request);

  EXPECT_EQ(biased.token_id, other);
  EXPECT_EQ(biased.logprob, plain.top[2].second);
  EXPECT_EQ(biased.top, plain.top);
}

TEST_P(SamplingTest, TopLogprobsBreakTiesByTheLowestId) {
  auto backend = MakeBackend(1);
  Request request = {.params = Greedy(5), .logits = std::vector<float>(300, 0.0F)};
  request.logits[200] = 1.0F;

  const SampledRow row = SampleOne(*backend, request);

  const std::vector<TokenId> expected = {200, 0, 1, 2, 3};
  for (size_t k = 0; k < 5; ++k) {
    EXPECT_EQ(row.top[k].first, expected[k]);
  }
}

TEST_P(SamplingTest, RowsThatAreNotFiniteAreReportedAndHarmNoOther) {
  auto backend = MakeBackend(2);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const size_t where : {0U, 5U, 63U, 64U, 98U}) {
      std::vector<Request> requests(3, {.params = Greedy(2), .logits = RandomLogits(99, 3, 1.0F)});
      const SampledRow healthy = SampleOne(*backend, requests[0]);
      requests[1].logits[where] = bad;

      const std::vector<SampledRow> rows = Sample(*backend, requests);

      EXPECT_FALSE(rows[1].finite) << bad << " at " << where;
      EXPECT_EQ(rows[1].token_id, 0);
      EXPECT_EQ(rows[0], healthy);
      EXPECT_EQ(rows[2], healthy);
    }
  }
}

TEST_P(SamplingTest, TokensAreBannedOnlyBeforeMinTokens) {
  auto backend = MakeBackend(1);
  Request request = {.params = Greedy(-1), .logits = std::vector<float>(80, 0.0F)};
  request.logits[70] = 9.0F;
  request.logits[30] = 8.0F;
  request.params.min_tokens = 2;
  request.params.banned_before_min_tokens = {70};

  request.output = {1};
  EXPECT_EQ(SampleOne(*backend, request).token_id, 30);
  request.output = {1, 1};
  EXPECT_EQ(SampleOne(*backend, request).token_id, 70);
}

TEST_P(SamplingTest, ABannedVocabularyIsReportedNotDrawnFrom) {
  auto backend = MakeBackend(1);
  for (const float temperature : {0.0F, 1.0F}) {
    Request request = {.logits = std::vector<float>(3, 0.0F)};
    request.params.temperature = temperature;
    request.params.min_tokens = 1;
    request.params.banned_before_min_tokens = {0, 1, 2};

    EXPECT_FALSE(SampleOne(*backend, request).finite);
  }
}

TEST_P(SamplingTest, ARowDependsOnItselfAlone) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 40; ++i) {
    Request request = {.logits = RandomLogits(777, 10 + i, 2.0F)};
    request.params.seed = i;
    request.params.num_logprobs = static_cast<int32_t>(i % 4) - 1;
    request.params.top_k = i % 3 == 0 ? 40 : 0;
    request.params.top_p = i % 5 == 0 ? 0.9F : 1.0F;
    request.params.min_p = i % 7 == 0 ? 0.05F : 0.0F;
    request.params.repetition_penalty = i % 2 == 0 ? 1.2F : 1.0F;
    request.prompt = {1, 2, 3};
    requests.push_back(request);
  }
  auto single = MakeBackend(1);

  for (const int threads : {1, 2, 3}) {
    const std::vector<SampledRow> together = Sample(*MakeBackend(threads), requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(together[i], SampleOne(*single, requests[i])) << "row " << i;
    }
  }
}

TEST_P(SamplingTest, TheDrawIsNamedBySeedAndTokenIndex) {
  auto backend = MakeBackend(1);
  const auto draw = [&](uint64_t seed, size_t output_size) {
    // A flat row of 2^16 tokens shows the first word of Philox.
    Request request = {.logits = std::vector<float>(65536, 0.0F)};
    request.params.seed = seed;
    request.output.assign(output_size, 0);
    return SampleOne(*backend, request).token_id;
  };
  for (const auto& [seed, index] :
       std::vector<std::pair<uint64_t, uint32_t>>{{0, 0}, {1, 0}, {0, 1}, {uint64_t{1} << 40, 3}}) {
    const PhiloxWords words = Philox4x32(seed, {0, index, 0, 0});

    EXPECT_EQ(draw(seed, index), static_cast<TokenId>(words[0] >> 16));
  }
}

// Random requests of every kind. The reference computes in double; the fixed seeds avoid the draws
// (one in millions) where rounding decides.
TEST_P(SamplingTest, AgreesWithTheReference) {
  auto backend = MakeBackend(2);
  auto reference = CreateReferenceBackend();
  std::mt19937 generator(99);
  const auto one_of = [&](std::initializer_list<float> values) {
    return values.begin()[generator() % values.size()];
  };
  for (int round = 0; round < 60; ++round) {
    const size_t vocab = 1 + generator() % (round % 10 == 0 ? 20'000 : 900);
    std::vector<Request> requests;
    for (int i = 0; i < 20; ++i) {
      Request request = {.logits = RandomLogits(vocab,
                                                static_cast<uint32_t>(generator()),
                                                one_of({0.0F, 0.3F, 2.0F, 8.0F}))};
      SamplingParams& params = request.params;
      params.seed = generator();
      params.temperature = one_of({0.0F, 0.2F, 0.8F, 1.0F, 3.0F});
      params.top_k = static_cast<int32_t>(one_of({0, 0, 1, 2, 50, 1000}));
      params.top_p = one_of({1.0F, 1.0F, 0.99F, 0.9F, 0.3F, 0.001F});
      params.min_p = one_of({0.0F, 0.0F, 0.01F, 0.5F});
      params.repetition_penalty = one_of({1.0F, 1.0F, 1.5F, 0.8F});
      params.frequency_penalty = one_of({0.0F, 0.0F, 0.5F, -0.5F});
      params.presence_penalty = one_of({0.0F, 0.0F, 1.0F});
      params.num_logprobs =
          std::min(static_cast<int32_t>(one_of({0, 0, 3, 20})), static_cast<int32_t>(vocab));
      for (int t = 0; t < 30; ++t) {
        auto& tokens = t % 2 == 0 ? request.prompt : request.output;
        tokens.push_back(static_cast<TokenId>(generator() % vocab));
      }
      requests.push_back(request);
    }

    const std::vector<SampledRow> rows = Sample(*backend, requests);
    const std::vector<SampledRow> expected = Sample(*reference, requests);

    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_TRUE(rows[i].finite);
      ASSERT_EQ(rows[i].token_id, expected[i].token_id) << "round " << round << " row " << i;
      ASSERT_NEAR(rows[i].logprob, expected[i].logprob, 1e-5);
      for (size_t k = 0; k < rows[i].top.size(); ++k) {
        ASSERT_EQ(rows[i].top[k].first, expected[i].top[k].first);
        ASSERT_NEAR(rows[i].top[k].second, expected[i].top[k].second, 1e-5);
      }
    }
  }
}

// Distributions whose nucleus is a large part of the vocabulary.
TEST_P(SamplingTest, AgreesWithTheReferenceOnFlatDistributions) {
  auto backend = MakeBackend(2);
  auto reference = CreateReferenceBackend();
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 24; ++i) {
    Request request = {.logits = RandomLogits(20'011, 500 + i, 0.5F * static_cast<float>(i % 6))};
    request.params.seed = i;
    request.params.top_p = i % 2 == 0 ? 0.9F : 0.6F;
    requests.push_back(request);
  }

  const std::vector<SampledRow> rows = Sample(*backend, requests);
  const std::vector<SampledRow> expected = Sample(*reference, requests);

  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].token_id, expected[i].token_id) << "row " << i;
  }
}

struct GoldenCase {
  std::string name;
  Request request;
  std::vector<double> probabilities;
};

std::vector<double> NumbersOf(std::istream& in) {
  std::string line;
  std::getline(in, line);
  std::istringstream numbers(line);
  return {std::istream_iterator<double>(numbers), std::istream_iterator<double>()};
}

template <typename T>
std::vector<T> As(const std::vector<double>& values) {
  std::vector<T> result;
  for (const double value : values) {
    result.push_back(static_cast<T>(value));
  }
  return result;
}

std::vector<GoldenCase> GoldenCases() {
  std::ifstream file("tests/kernels/testdata/sampling.txt");
  std::vector<GoldenCase> cases;
  GoldenCase c;
  while (std::getline(file, c.name)) {
    SamplingParams params;
    const std::vector<float> shape = As<float>(NumbersOf(file));
    params.temperature = shape.at(0);
    params.top_k = static_cast<int32_t>(shape.at(1));
    params.top_p = shape.at(2);
    params.min_p = shape.at(3);
    const std::vector<float> penalties = As<float>(NumbersOf(file));
    params.repetition_penalty = penalties.at(0);
    params.frequency_penalty = penalties.at(1);
    params.presence_penalty = penalties.at(2);
    const std::vector<double> bias = NumbersOf(file);
    for (size_t i = 0; i + 1 < bias.size(); i += 2) {
      params.logit_bias.emplace_back(static_cast<TokenId>(bias[i]),
                                     static_cast<float>(bias[i + 1]));
    }
    params.banned_before_min_tokens = As<TokenId>(NumbersOf(file));
    params.min_tokens = 1000;
    c.request = {.params = params};
    c.request.prompt = As<TokenId>(NumbersOf(file));
    c.request.output = As<TokenId>(NumbersOf(file));
    c.request.logits = As<float>(NumbersOf(file));
    c.probabilities = NumbersOf(file);
    cases.push_back(c);
  }
  return cases;
}

// Many draws with different seeds: nothing outside the kept set, every likely token in it, and
// frequencies that a chi-square test at one in a million accepts.
TEST_P(SamplingTest, DrawsFollowTheDistributionsOfHuggingFace) {
  constexpr int kDraws = 20'000;
  constexpr int kBatch = 500;
  auto backend = MakeBackend(1);
  const std::vector<GoldenCase> cases = GoldenCases();
  ASSERT_EQ(cases.size(), 22U);
  for (const GoldenCase& c : cases) {
    std::vector<double> counts(c.probabilities.size(), 0.0);
    std::vector<Request> requests(kBatch, c.request);
    for (int begin = 0; begin < kDraws; begin += kBatch) {
      for (int i = 0; i < kBatch; ++i) {
        requests[static_cast<size_t>(i)].params.seed = static_cast<uint64_t>(begin + i);
      }
      for (const SampledRow& row : Sample(*backend, requests)) {
        counts[static_cast<size_t>(row.token_id)] += 1.0;
      }
    }

    double chi_square = 0.0;
    double degrees = -1.0;
    double rare_expected = 0.0;
    double rare_count = 0.0;
    for (size_t token = 0; token < counts.size(); ++token) {
      const double expected = c.probabilities[token] * kDraws;
      if (expected == 0.0) {
        EXPECT_EQ(counts[token], 0.0) << c.name << " drew token " << token;
      } else if (expected < 10.0) {
        rare_expected += expected;
        rare_count += counts[token];
      } else {
        EXPECT_GT(counts[token], 0.0) << c.name << " never drew token " << token;
        chi_square += (counts[token] - expected) * (counts[token] - expected) / expected;
        degrees += 1.0;
      }
    }
    if (rare_expected > 0.0) {
      chi_square += (rare_count - rare_expected) * (rare_count - rare_expected) /
                    std::max(rare_expected, 1.0);
      degrees += 1.0;
    }
    // Wilson and Hilferty: the cube root of chi-square / degrees is nearly normal.
    if (degrees > 0.0) {
      const double spread = 2.0 / (9.0 * degrees);
      const double z = (std::cbrt(chi_square / degrees) - (1.0 - spread)) / std::sqrt(spread);
      EXPECT_LT(z, 4.75) << c.name << " chi-square " << chi_square << " of " << degrees;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SamplingTest, testing::ValuesIn(CpuIsas()), IsaName);

}  // namespace
}  // namespace quire
