// Sampling of the GPU backend against kernels/reference, and the promises of
// kernels/api/sampling.h.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/philox.cuh"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/row_compare.h"
#include "tests/kernels/cuda/sample_request.h"

namespace quire::gpu {
namespace {

// ---- The generator ----

TEST(PhiloxTest, MatchesThePublishedVectors) {
  struct Vector {
    uint64_t key;
    PhiloxWords counter;
    PhiloxWords expected;
  };
  // kat_vectors of the Random123 distribution, philox4x32 with 10 rounds.
  constexpr Vector kVectors[] = {
      {0, {{0, 0, 0, 0}}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
      {~uint64_t{0}, {{~0U, ~0U, ~0U, ~0U}}, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
      {0x299f31d0a4093822,
       {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
  };
  for (const Vector& vector : kVectors) {
    const PhiloxWords words = Philox4x32(vector.key, vector.counter);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(words.word[i], vector.expected.word[i]);
    }
  }
}

TEST(SampleTest, TheDrawIsNamedBySeedAndTokenIndex) {
  struct Name {
    uint64_t seed;
    int32_t token_index;
  };
  constexpr Name kNames[] = {{0, 0}, {1, 0}, {0, 1}, {uint64_t{1} << 40, 3}};
  std::vector<SampleRequest> requests;
  for (const Name& name : kNames) {
    // A flat row of 2^16 tokens shows the upper half of the first word.
    SampleRequest request = Drawing(std::vector<float>(65536, 0.0F), name.seed);
    request.output.resize(static_cast<size_t>(name.token_index));
    requests.push_back(request);
  }

  const std::vector<SampledRow> rows = SampleRows(requests, 0);

  EXPECT_EQ(rows[0].token_id, 0x6627);  // of the published vector
  for (size_t i = 0; i < rows.size(); ++i) {
    const PhiloxWords words =
        Philox4x32(kNames[i].seed, {{0, static_cast<uint32_t>(kNames[i].token_index), 0, 0}});
    EXPECT_EQ(rows[i].token_id, static_cast<TokenId>(words.word[0] >> 16));
  }
}

// u * total is the running sum of the tokens before it, and the draw must exceed it.
TEST(SampleTest, ADrawOnTheBorderBelongsToTheTokenBehindIt) {
  constexpr int kVocabBits = 10;
  SampleRequest request = Drawing(std::vector<float>(1 << kVocabBits, 0.0F));
  TokenId expected = 0;
  while (expected == 0) {  // a u that is a multiple of 2^-10
    ++request.params.seed;
    const PhiloxWords words = Philox4x32(request.params.seed, {{0, 0, 0, 0}});
    if (words.word[0] << kVocabBits == 0) {
      expected = static_cast<TokenId>(words.word[0] >> (32 - kVocabBits));
    }
  }

  EXPECT_EQ(SampleOne(request).token_id, expected);
}

// ---- Greedy ----

TEST(SampleTest, GreedyTakesTheGreatestAndTheLowestIdAmongEquals) {
  for (const size_t vocab : {1U, 2U, 5U, 127U, 128U, 129U, 1000U, 4097U, 33000U}) {
    std::vector<SampleRequest> requests = {Greedy(std::vector<float>(vocab, -3.0F))};
    std::vector<TokenId> expected = {0};
    for (size_t best = 0; best < vocab; best += 1 + vocab / 7) {
      std::vector<float> logits(vocab, -3.0F);
      logits[best] = 1.5F;
      logits[vocab - 1] = 1.5F;
      requests.push_back(Greedy(logits));
      expected.push_back(static_cast<TokenId>(best));
    }

    const std::vector<SampledRow> rows = SampleRows(requests);

    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].token_id, expected[i]) << "vocabulary " << vocab;
    }
  }
}

TEST(SampleTest, MinusZeroEqualsZero) {
  std::vector<float> logits(300, -1.0F);
  logits[7] = -0.0F;
  logits[200] = 0.0F;

  EXPECT_EQ(SampleOne(Greedy(logits)).token_id, 7);
  SampleRequest request = Drawing(logits);
  request.params.top_k = 1;
  EXPECT_EQ(SampleOne(request).token_id, 7);
  EXPECT_EQ(SampleOne(Greedy(logits, 2)).top[0].first, 7);
}

TEST(SampleTest, TemperaturesBelowOneIn100000AreGreedy) {
  // At any temperature the two would be equally likely.
  SampleRequest request = Drawing({1.0F, 1.0F + FLT_EPSILON});
  for (const float temperature : {0.0F, 9.9e-6F}) {
    request.params.temperature = temperature;
    for (const SampledRow& row : SampleRows(WithSeeds(request, 20))) {
      EXPECT_EQ(row.token_id, 1);
    }
  }
  request.params.temperature = 1e-5F;
  int zeros = 0;
  for (const SampledRow& row : SampleRows(WithSeeds(request, 100))) {
    zeros += row.token_id == 0 ? 1 : 0;
  }
  EXPECT_GT(zeros, 30);
  EXPECT_LT(zeros, 70);
}

// ---- Rows that cannot be sampled ----

TEST(SampleTest, RowsThatAreNotFiniteAreReportedAndHarmNoOther) {
  SampleRequest greedy = Greedy(RandomFloats(99, 3, 1.0F), 2);
  SampleRequest drawing = Drawing(greedy.logits);
  drawing.params.top_k = 5;
  Adjust(&drawing, {{5, 1.0F, 1, 1}, {98, -kInfinity, 0, 0}});
  for (const SampleRequest& request : {greedy, drawing}) {
    const SampledRow healthy = SampleOne(request);
    ASSERT_TRUE(healthy.finite);
    for (const float bad : {NAN, kInfinity, -kInfinity}) {
      for (const size_t where : {0U, 5U, 63U, 64U, 98U}) {
        std::vector<SampleRequest> requests(3, request);
        requests[1].logits[where] = bad;

        const std::vector<SampledRow> rows = SampleRows(requests);

        EXPECT_FALSE(rows[1].finite) << bad << " at " << where;
        EXPECT_EQ(rows[1].token_id, 0);
        for (const auto& top : rows[1].top) {
          EXPECT_EQ(top, std::make_pair(0, 0.0F));
        }
        EXPECT_EQ(rows[0], healthy);
        EXPECT_EQ(rows[2], healthy);
      }
    }
  }
}

TEST(SampleTest, ARowOfNaNsIsReported) {
  for (const size_t vocab : {5U, 5000U}) {
    EXPECT_FALSE(SampleOne(Greedy(std::vector<float>(vocab, NAN), 3)).finite);
    EXPECT_FALSE(SampleOne(Drawing(std::vector<float>(vocab, NAN))).finite);
  }
}

TEST(SampleTest, ABannedVocabularyIsReportedNotDrawnFrom) {
  for (const float temperature : {0.0F, 1.0F}) {
    for (const int32_t num_logprobs : {-1, 1}) {
      SampleRequest request = Greedy({0.0F, 1.0F, 2.0F}, num_logprobs);
      request.params.temperature = temperature;
      Adjust(&request, {{2, -kInfinity, 0, 0}, {0, -kInfinity, 0, 0}, {1, -kInfinity, 0, 0}});

      const SampledRow row = SampleOne(request);

      EXPECT_FALSE(row.finite);
      EXPECT_EQ(row.token_id, 0);
      if (num_logprobs > 0) {  // of the row as the model gave it
        EXPECT_EQ(row.top[0].first, 2);
      }
    }
  }
}

TEST(SampleTest, TheOneTokenThatIsNotBannedIsDrawn) {
  for (const int32_t top_k : {0, 2, 100}) {
    SampleRequest request = Drawing(RandomFloats(400, 4, 3.0F));
    request.params.top_k = top_k;
    request.params.top_p = 0.9F;
    for (TokenId token_id = 0; token_id < 400; ++token_id) {
      if (token_id != 321) {
        Adjust(&request, {{token_id, -kInfinity, 0, 0}});
      }
    }
    for (const SampledRow& row : SampleRows(WithSeeds(request, 4))) {
      EXPECT_TRUE(row.finite);
      EXPECT_EQ(row.token_id, 321);
    }
  }
}

// ---- Adjustments ----

TEST(SampleTest, PenaltiesCountWhatTheyShould) {
  const auto token_of = [](std::vector<float> logits,
                           const SamplingParams& params,
                           const std::vector<LogitAdjustment>& adjustments) {
    SampleRequest request = {.params = params, .logits = std::move(logits)};
    Adjust(&request, adjustments);
    return SampleOne(request).token_id;
  };
  const SamplingParams repetition = {.temperature = 0.0F, .repetition_penalty = 2.0F};
  EXPECT_EQ(token_of({3.0F, 2.0F}, repetition, {{0, 0.0F, 0, 1}}), 1);    // 1.5 against 2
  EXPECT_EQ(token_of({3.0F, 1.4F}, repetition, {{0, 0.0F, 2, 1}}), 0);    // once, not twice
  EXPECT_EQ(token_of({-1.0F, -1.5F}, repetition, {{0, 0.0F, 0, 1}}), 1);  // -2 against -1.5
  EXPECT_EQ(token_of({3.0F, 2.0F}, repetition, {{0, 0.5F, 0, 0}}), 0);    // not in the context
  // The bias comes first: (3 - 2) / 2 against 0.75, not 3 / 2 - 2.
  EXPECT_EQ(token_of({3.0F, 0.25F}, repetition, {{0, -2.0F, 0, 1}}), 0);
  EXPECT_EQ(token_of({3.0F, 0.75F}, repetition, {{0, -2.0F, 0, 1}}), 1);

  const SamplingParams frequency = {.temperature = 0.0F, .frequency_penalty = 1.0F};
  EXPECT_EQ(token_of({3.0F, 1.5F}, frequency, {{0, 0.0F, 1, 1}}), 0);  // 2
  EXPECT_EQ(token_of({3.0F, 1.5F}, frequency, {{0, 0.0F, 2, 1}}), 1);  // 1
  EXPECT_EQ(token_of({3.0F, 1.5F}, frequency, {{0, 0.0F, 0, 1}}), 0);  // in the prompt alone

  const SamplingParams presence = {.temperature = 0.0F, .presence_penalty = 1.0F};
  EXPECT_EQ(token_of({3.0F, 1.5F}, presence, {{0, 0.0F, 5, 1}}), 0);  // 2: once
  EXPECT_EQ(token_of({3.0F, 2.5F}, presence, {{0, 0.0F, 1, 1}}), 1);  // 2 against 2.5
  EXPECT_EQ(token_of({3.0F, 2.5F}, presence, {{0, 0.0F, 0, 1}}), 0);  // in the prompt alone

  // Repetition before frequency and presence: 3 / 2 - 1 against 0.75, not (3 - 1) / 2.
  const SamplingParams both = {
      .temperature = 0.0F, .repetition_penalty = 2.0F, .presence_penalty = 1.0F};
  EXPECT_EQ(token_of({3.0F, 0.75F}, both, {{0, 0.0F, 1, 1}}), 1);
}

TEST(SampleTest, EveryAdjustmentOfALongListIsApplied) {
  // All tokens but one are pushed down, by more adjustments than the CTA has threads.
  std::vector<SampleRequest> requests;
  for (const TokenId spared : {0, 511, 999}) {
    SampleRequest request = Greedy(std::vector<float>(1000, 5.0F), 1);
    for (TokenId token_id = 999; token_id >= 0; --token_id) {
      if (token_id != spared) {
        Adjust(&request, {{token_id, -0.5F, 0, 0}});
      }
    }
    requests.push_back(request);
  }

  const std::vector<SampledRow> rows = SampleRows(requests);

  EXPECT_EQ(rows[0].token_id, 0);
  EXPECT_EQ(rows[1].token_id, 511);
  EXPECT_EQ(rows[2].token_id, 999);
}

// ---- Filters, with wide margins ----

// The set of tokens that some seed draws.
std::vector<TokenId> TokensDrawn(const SampleRequest& request, int draws = 60) {
  std::vector<TokenId> tokens;
  for (const SampledRow& row : SampleRows(WithSeeds(request, draws))) {
    EXPECT_TRUE(row.finite);
    tokens.push_back(row.token_id);
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

// Probabilities 0.4, 0.3, 0.2, 0.1 of tokens 3, 0, 4, 1; token 2 has next to none.
SampleRequest FiveTokens() {
  return Drawing({std::log(0.3F), std::log(0.1F), -60.0F, std::log(0.4F), std::log(0.2F)});
}

using Tokens = std::vector<TokenId>;

TEST(SampleTest, WithoutFiltersEveryTokenIsDrawn) {
  EXPECT_EQ(TokensDrawn(FiveTokens()), (Tokens{0, 1, 3, 4}));
}

TEST(SampleTest, TopKKeepsTheLikeliest) {
  SampleRequest request = FiveTokens();
  const std::vector<Tokens> expected = {{3}, {0, 3}, {0, 3, 4}, {0, 1, 3, 4}, {0, 1, 3, 4}};
  for (int32_t top_k = 1; top_k <= 5; ++top_k) {
    request.params.top_k = top_k;
    EXPECT_EQ(TokensDrawn(request), expected[static_cast<size_t>(top_k - 1)]) << top_k;
  }
}

TEST(SampleTest, TopPKeepsTheSmallestSetThatReachesIt) {
  SampleRequest request = FiveTokens();
  for (const auto& [top_p, expected] :
       std::vector<std::pair<float, Tokens>>{{1e-6F, {3}},
                                             {0.39F, {3}},
                                             {0.41F, {0, 3}},
                                             {0.69F, {0, 3}},
                                             {0.71F, {0, 3, 4}},
                                             {0.89F, {0, 3, 4}},
                                             {0.91F, {0, 1, 3, 4}}}) {
    request.params.top_p = top_p;
    EXPECT_EQ(TokensDrawn(request), expected) << top_p;
  }
}

TEST(SampleTest, MinPKeepsWhatIsNotTooUnlikely) {
  SampleRequest request = FiveTokens();
  for (const auto& [min_p, expected] : std::vector<std::pair<float, Tokens>>{
           {1.0F, {3}}, {0.76F, {3}}, {0.74F, {0, 3}}, {0.49F, {0, 3, 4}}, {0.24F, {0, 1, 3, 4}}}) {
    request.params.min_p = min_p;
    EXPECT_EQ(TokensDrawn(request), expected) << min_p;
  }
}

TEST(SampleTest, EachFilterCountsOverWhatTheOthersLeft) {
  SampleRequest request = FiveTokens();
  // Top-k leaves 0.4 and 0.3, of which 0.4 is 57 percent.
  request.params.top_k = 2;
  request.params.top_p = 0.5F;
  EXPECT_EQ(TokensDrawn(request), (Tokens{3}));
  request.params.top_p = 0.6F;
  EXPECT_EQ(TokensDrawn(request), (Tokens{0, 3}));

  // Min-p leaves 0.4, 0.3 and 0.2, of which the first two are 78 percent.
  request.params.top_k = 0;
  request.params.min_p = 0.4F;
  request.params.top_p = 0.75F;
  EXPECT_EQ(TokensDrawn(request), (Tokens{0, 3}));
  request.params.top_p = 0.8F;
  EXPECT_EQ(TokensDrawn(request), (Tokens{0, 3, 4}));
  request.params.top_k = 2;
  EXPECT_EQ(TokensDrawn(request), (Tokens{0, 3}));
}

TEST(SampleTest, TheTemperatureComesBeforeTheFilters) {
  SampleRequest request = FiveTokens();
  // At 0.5 the probabilities are 16, 9, 4 and 1 of 30.
  request.params.temperature = 0.5F;
  request.params.top_p = 0.52F;
  EXPECT_EQ(TokensDrawn(request), (Tokens{3}));
  request.params.top_p = 0.55F;
  EXPECT_EQ(TokensDrawn(request), (Tokens{0, 3}));
  request.params.top_p = 1.0F;
  request.params.min_p = 0.5F;
  EXPECT_EQ(TokensDrawn(request), (Tokens{0, 3}));
}

// The short list, the histogram and the digits of the rank each have to cut one of these
// vocabularies.
TEST(SampleTest, AmongEqualsTheLowestIdsAreKept) {
  for (const int32_t vocab : {8, 1000, 20000}) {
    for (const float share : {0.125F, 0.25F, 0.75F}) {
      SampleRequest request = Drawing(std::vector<float>(static_cast<size_t>(vocab), 2.5F));
      const auto kept = static_cast<int32_t>(static_cast<float>(vocab) * share);
      std::vector<SampleRequest> requests;
      for (const bool by_count : {true, false}) {
        request.params.top_k = by_count ? kept : 0;
        request.params.top_p = by_count ? 1.0F : share;
        for (const uint64_t seed : {1U, 2U, 3U}) {
          request.params.seed = seed;
          requests.push_back(request);
        }
      }
      const std::vector<SampledRow> rows = SampleRows(requests);
      for (size_t i = 0; i < rows.size(); ++i) {
        // The draw among `kept` tokens of equal weight.
        const double u = reference::UniformOf(requests[i].row());
        EXPECT_EQ(rows[i].token_id, static_cast<TokenId>(u * kept)) << vocab << " " << share;
      }
    }
  }
}

TEST(SampleTest, OneTokenOfAVocabularyOfOne) {
  SampleRequest request = Drawing({-7.0F});
  request.params.top_k = 1;
  request.params.top_p = 0.5F;
  request.params.num_logprobs = 20;

  const SampledRow row = SampleOne(request);

  EXPECT_EQ(row.token_id, 0);
  EXPECT_EQ(row.logprob, 0.0F);
  ASSERT_EQ(row.top.size(), 1U);
  EXPECT_EQ(row.top[0], std::make_pair(0, 0.0F));
}

TEST(SampleTest, FiltersThatKeepEverythingChangeNothing) {
  for (const int32_t vocab : {7, 1000}) {
    for (uint64_t seed = 0; seed < 15; ++seed) {
      SampleRequest off = Drawing(RandomFloats(vocab, 8, 1.0F), seed);
      std::vector<SampleRequest> requests(5, off);
      requests[1].params.top_k = vocab;
      requests[2].params.top_k = vocab + 10;
      requests[3].params.top_k = 5000;
      requests[4].params.top_p = std::nextafter(1.0F, 0.0F);

      const std::vector<SampledRow> rows = SampleRows(requests);

      for (const SampledRow& row : rows) {
        EXPECT_EQ(row, rows[0]);
      }
    }
  }
}

TEST(SampleTest, ExtremeTemperaturesAndLogitsAreDrawnFrom) {
  // At such a temperature the draw is greedy.
  SampleRequest request = Drawing(RandomFloats(1000, 9, 3.0F));
  const TokenId best = SampleOne(Greedy(request.logits)).token_id;
  for (const float top_p : {1.0F, 0.9F}) {
    request.params.temperature = 1e-5F;
    request.params.top_p = top_p;
    EXPECT_EQ(TokensDrawn(request, 10), (Tokens{best}));
  }
  // At such a temperature the distribution is flat.
  request.params.temperature = 100.0F;
  EXPECT_EQ(CountNarrowDifferences(WithSeeds(request, 20)), 0);

  // The difference of the logits is infinite in fp32.
  for (const int32_t top_k : {0, 2, 40}) {
    std::vector<float> logits(64, -FLT_MAX);
    logits[17] = FLT_MAX;
    SampleRequest far = Drawing(logits);
    far.params.top_k = top_k;
    far.params.num_logprobs = 2;
    for (const SampledRow& row : SampleRows(WithSeeds(far, 4))) {
      EXPECT_TRUE(row.finite);
      EXPECT_EQ(row.token_id, 17);
      EXPECT_EQ(row.logprob, 0.0F);
    }
  }
}

// 2^17 tokens of 2^-34 each are drawn once in 2^17 times together, in proportion. A mass of 32 bits
// would round each of them to zero.
TEST(SampleTest, ManyTokensThatAreNearlyImpossibleAddUp) {
  constexpr int32_t kVocabSize = 1 << 17;
  std::vector<float> logits(kVocabSize, -34.0F * std::log(2.0F));
  logits[0] = 0.0F;
  SampleRequest request = Drawing(logits);
  int found = 0;
  std::vector<SampleRequest> requests;
  while (found < 3) {
    ++request.params.seed;
    if (reference::UniformOf(request.row()) > 1.0 - 0x1p-18) {  // the upper half of them
      requests.push_back(request);
      ++found;
    }
  }

  for (const SampledRow& row : SampleRows(requests, 0)) {
    EXPECT_GT(row.token_id, kVocabSize / 3);
  }
}

// ---- Log-probabilities ----

TEST(SampleTest, LogprobsAreAccurateAndSorted) {
  for (const int64_t vocab : {5, 1000, 5003, 32000, 128256}) {
    for (const float scale : {0.1F, 3.0F, 30.0F}) {
      if (vocab == 128256 && scale == 0.1F) {
        continue;
      }
      SampleRequest request = Greedy(RandomFloats(vocab, 20, scale), 20);
      const SampledRow expected = ReferenceRow(request);

      const SampledRow row = SampleOne(request);

      EXPECT_NEAR(row.logprob, expected.logprob, 1e-5);
      ASSERT_EQ(row.top.size(), static_cast<size_t>(std::min<int64_t>(20, vocab)));
      for (size_t k = 0; k < row.top.size(); ++k) {
        EXPECT_EQ(row.top[k].first, expected.top[k].first) << "of " << vocab;
        EXPECT_NEAR(row.top[k].second, expected.top[k].second, 1e-5);
      }
    }
  }
}

// Far from zero, where logits have fewer digits than their differences.
TEST(SampleTest, LogprobsDoNotDependOnWhereZeroIs) {
  std::vector<float> logits = RandomFloats(1000, 22, 2.0F);
  for (float& logit : logits) {
    logit -= 20000.0F;
  }
  const std::vector<float> expected = ReferenceLogprobs(logits);

  const SampledRow row = SampleOne(Greedy(logits, 20));

  EXPECT_NEAR(row.logprob, expected[static_cast<size_t>(row.token_id)], 1e-5);
  for (const auto& [token_id, logprob] : row.top) {
    EXPECT_NEAR(logprob, expected[static_cast<size_t>(token_id)], 1e-5);
  }
}

// 1000 tokens take 128 threads, whose maxima are of 32 groups.
TEST(SampleTest, MoreTopLogprobsThanGroupsOfThreadsAreWritten) {
  for (const int32_t num_logprobs : {31, 32, 33, 40}) {
    const SampleRequest request = Greedy(RandomFloats(1000, 23, 3.0F), num_logprobs);
    const SampledRow expected = ReferenceRow(request);

    const SampledRow row = SampleOne(request);

    ASSERT_EQ(row.top.size(), static_cast<size_t>(num_logprobs));
    for (size_t k = 0; k < row.top.size(); ++k) {
      EXPECT_EQ(row.top[k].first, expected.top[k].first) << "of " << num_logprobs;
    }
  }
}

TEST(SampleTest, TopLogprobsBreakTiesByTheLowestId) {
  for (const size_t vocab : {300U, 5003U, 40000U}) {  // the latter overflow the short list
    std::vector<float> logits(vocab, 0.0F);
    logits[200] = 1.0F;

    const SampledRow row = SampleOne(Greedy(logits, 20));

    EXPECT_EQ(row.top[0].first, 200);
    for (TokenId k = 1; k < 20; ++k) {
      EXPECT_EQ(row.top[static_cast<size_t>(k)].first, k - 1);
    }
  }
}

TEST(SampleTest, LogprobsAreOfTheRowAsTheModelGaveIt) {
  const std::vector<float> logits = RandomFloats(700, 21, 2.0F);
  const SampledRow plain = SampleOne(Greedy(logits, 3));
  const TokenId other = plain.top[2].first;

  SampleRequest biased = Greedy(logits, 3);
  Adjust(&biased, {{1, 0.1F, 0, 0}, {other, 50.0F, 3, 1}, {2, -kInfinity, 0, 0}});
  biased.params.presence_penalty = 0.3F;
  biased.params.repetition_penalty = 1.3F;
  const SampledRow row = SampleOne(biased);

  EXPECT_EQ(row.token_id, other);
  EXPECT_EQ(row.logprob, plain.top[2].second);
  EXPECT_EQ(row.top, plain.top);
}

TEST(SampleTest, LogprobsOfDrawsAreThoseOfTheTokenDrawn) {
  SampleRequest request = Drawing(RandomFloats(1000, 22, 1.0F));
  request.params.temperature = 2.0F;
  request.params.num_logprobs = 0;
  for (TokenId token_id = 0; token_id < 1000; token_id += 2) {
    Adjust(&request, {{token_id, 0.25F, 1, 1}});
  }
  const std::vector<float> expected = ReferenceLogprobs(request.logits);
  for (const SampledRow& row : SampleRows(WithSeeds(request, 20))) {
    EXPECT_NEAR(row.logprob, expected[static_cast<size_t>(row.token_id)], 1e-5);
  }
}

// ---- Rows alone and together ----

SampleRequest RandomRequest(int64_t vocab, std::mt19937& generator) {
  const auto one_of = [&](std::initializer_list<float> values) {
    return values.begin()[generator() % values.size()];
  };
  SampleRequest request;
  request.logits = RandomFloats(
      vocab, static_cast<uint32_t>(generator()), one_of({0.0F, 0.3F, 2.0F, 2.0F, 8.0F}));
  request.params = {
      .temperature = one_of({0.0F, 0.2F, 0.8F, 1.0F, 1.0F, 3.0F}),
      .top_k = static_cast<int32_t>(one_of({0, 0, 1, 2, 50, 300, 1000, 20000})),
      .top_p = one_of({1.0F, 1.0F, 0.99F, 0.9F, 0.3F, 0.001F}),
      .min_p = one_of({0.0F, 0.0F, 0.01F, 0.5F}),
      .repetition_penalty = one_of({1.0F, 1.0F, 1.5F, 0.8F}),
      .presence_penalty = one_of({0.0F, 0.0F, 1.0F}),
      .frequency_penalty = one_of({0.0F, 0.0F, 0.5F, -0.5F}),
      .num_logprobs = static_cast<int32_t>(one_of({-1, -1, 0, 3, 20})),
      .seed = generator(),
  };
  if (generator() % 2 == 0) {
    for (auto token_id = static_cast<TokenId>(generator() % 3); token_id < vocab;
         token_id += 1 + static_cast<TokenId>(generator() % 9)) {
      const auto count = static_cast<int32_t>(generator() % 3);
      Adjust(&request,
             {{token_id,
               one_of({0.0F, 0.0F, 2.0F, -1.0F, -kInfinity}),
               count,
               count > 0 || generator() % 2 == 0 ? 1 : 0}});
    }
  }
  return request;
}

TEST(SampleTest, ARowDependsOnItselfAlone) {
  std::mt19937 generator(31);
  for (const int64_t vocab : {777, 5000}) {
    std::vector<SampleRequest> requests;
    for (int i = 0; i < 30; ++i) {
      requests.push_back(RandomRequest(vocab, generator));
    }
    const std::vector<SampledRow> together = SampleRows(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(together[i], SampleOne(requests[i])) << "row " << i;
    }
  }
}

// With a padding of 3, three rows of four start between 16-byte boundaries.
TEST(SampleTest, ARowDoesNotDependOnItsAddress) {
  std::mt19937 generator(32);
  std::vector<SampleRequest> requests;
  for (int i = 0; i < 16; ++i) {
    SampleRequest request = RandomRequest(6000, generator);
    request.params.num_logprobs = 5;
    requests.push_back(request);
  }
  const std::vector<SampledRow> aligned = SampleRows(requests, 0);
  for (const int64_t padding : {1, 2, 3, 4}) {
    EXPECT_EQ(SampleRows(requests, padding), aligned) << padding;
  }
}

// ---- Against the reference ----

TEST(SampleTest, AgreesWithTheReferenceOnRandomRequests) {
  std::mt19937 generator(33);
  int narrow = 0;
  for (const int64_t vocab : {2, 5, 37, 130, 1000, 1000, 1000, 3001, 4096, 5003, 9000}) {
    std::vector<SampleRequest> requests;
    for (int i = 0; i < 60; ++i) {
      requests.push_back(RandomRequest(vocab, generator));
    }
    narrow += CountNarrowDifferences(requests);
  }
  EXPECT_LE(narrow, 1);
}

// Each way of finding the cutoff, on vocabularies of models.
TEST(SampleTest, AgreesWithTheReferenceOnLargeVocabularies) {
  int narrow = 0;
  for (const int64_t vocab : {32000, 50257, 128256}) {
    SampleRequest request = Drawing(RandomFloats(vocab, 41, 2.5F));
    std::vector<SampleRequest> requests(8, request);
    requests[1].params.top_k = 50;
    requests[1].params.top_p = 0.95F;
    requests[2].params.top_p = 0.3F;
    requests[3].params.top_p = 0.97F;
    requests[4].params.top_k = 5000;
    requests[4].params.top_p = 0.9F;
    requests[5].params.top_k = 30000;
    requests[5].params.temperature = 0.7F;
    requests[6].params.min_p = 0.001F;
    requests[6].params.top_p = 0.95F;
    requests[7].logits = RandomFloats(vocab, 42, 0.02F);
    requests[7].params.top_p = 0.6F;
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].params.seed = 70 + i;
    }
    narrow += CountNarrowDifferences(requests, 0);
  }
  EXPECT_LE(narrow, 1);
}

// Logits as bf16 gives them: cuts fall within ties, and ties are more than the list holds.
TEST(SampleTest, AgreesWithTheReferenceWhereManyTokensTie) {
  std::mt19937 generator(43);
  std::vector<SampleRequest> requests;
  for (int i = 0; i < 24; ++i) {
    SampleRequest request = Drawing(RandomFloats(12000, 50 + static_cast<uint32_t>(i), 1.0F));
    const float step = i % 2 == 0 ? 1.0F : 0.25F;
    for (float& logit : request.logits) {
      logit = std::round(logit / step) * step;
    }
    request.params.seed = generator();
    request.params.top_k = i % 3 == 0 ? 0 : static_cast<int32_t>(1 + generator() % 11000);
    request.params.top_p = i % 3 == 1 ? 1.0F : 0.05F + 0.9F * static_cast<float>(i) / 24.0F;
    requests.push_back(request);
  }
  EXPECT_LE(CountNarrowDifferences(requests), 1);
}

// Many draws with different seeds: nothing outside the kept set, and frequencies that a chi-square
// test at one in a million accepts.
TEST(SampleTest, DrawsFollowTheDistribution) {
  constexpr int kDraws = 1500;
  SampleRequest plain = Drawing(RandomFloats(60, 61, 1.5F));
  SampleRequest filtered = plain;
  filtered.params.temperature = 1.7F;
  filtered.params.top_k = 30;
  filtered.params.top_p = 0.9F;
  filtered.params.min_p = 0.02F;
  SampleRequest by_histogram = plain;
  by_histogram.params.top_k = 40;
  by_histogram.params.top_p = 0.93F;
  SampleRequest adjusted = plain;
  adjusted.params.repetition_penalty = 1.5F;
  adjusted.params.presence_penalty = 0.5F;
  Adjust(&adjusted, {{1, 2.0F, 1, 1}, {7, -kInfinity, 0, 0}, {20, 0.0F, 0, 1}});
  for (const SampleRequest& request : {plain, filtered, by_histogram, adjusted}) {
    const std::vector<double> weights = reference::SamplingWeights(request.row(), request.logits);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<double> counts(weights.size(), 0.0);
    for (const SampledRow& row : SampleRows(WithSeeds(request, kDraws))) {
      counts[static_cast<size_t>(row.token_id)] += 1.0;
    }

    double chi_square = 0.0;
    double degrees = -1.0;
    double rare_expected = 0.0;
    double rare_count = 0.0;
    for (size_t token = 0; token < counts.size(); ++token) {
      const double expected = weights[token] / total * kDraws;
      if (expected == 0.0) {
        EXPECT_EQ(counts[token], 0.0) << "token " << token;
      } else if (expected < 10.0) {
        rare_expected += expected;
        rare_count += counts[token];
      } else {
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
    ASSERT_GT(degrees, 5.0);
    const double spread = 2.0 / (9.0 * degrees);
    const double z = (std::cbrt(chi_square / degrees) - (1.0 - spread)) / std::sqrt(spread);
    EXPECT_LT(z, 4.75) << "chi-square " << chi_square << " of " << degrees;
  }
}

TEST(SampleTest, NoRowsAreNoWork) {
  EXPECT_EQ(Sample({.num_rows = 0, .vocab_size = 10}, {}, nullptr), 0);
}

}  // namespace
}  // namespace quire::gpu
