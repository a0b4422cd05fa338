// The reference against numbers worked out by hand or published; everything else is compared with
// the reference.
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/reference/element.h"
#include "kernels/reference/philox.h"
#include "kernels/reference/reference_backend.h"
#include "tests/kernels/attention_case.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::FloatNear;
using testing::Pointwise;

TEST(ElementTest, EveryHalfSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    auto half = static_cast<uint16_t>(bits);
    float value = reference::FloatFromHalf(half);

    bool is_nan = (bits & 0x7C00) == 0x7C00 && (bits & 0x3FF) != 0;
    ASSERT_EQ(std::isnan(value), is_nan) << bits;
    if (!is_nan) {
      ASSERT_EQ(reference::HalfFromFloat(value), half) << bits;
    }
  }
}

TEST(ElementTest, HalfRoundsToNearestWithTiesToEven) {
  EXPECT_EQ(reference::HalfFromFloat(1.0F), 0x3C00);
  EXPECT_EQ(reference::HalfFromFloat(1.0F + 0x1p-11F), 0x3C00);      // tie, down to even
  EXPECT_EQ(reference::HalfFromFloat(1.0F + 0x3p-11F), 0x3C02);      // tie, up to even
  EXPECT_EQ(reference::HalfFromFloat(1.0F + 0x1.002p-11F), 0x3C01);  // above the tie
  EXPECT_EQ(reference::HalfFromFloat(-65504.0F), 0xFBFF);            // the largest
  EXPECT_EQ(reference::HalfFromFloat(65519.9F), 0x7BFF);
  EXPECT_EQ(reference::HalfFromFloat(65520.0F), 0x7C00);  // infinity
  EXPECT_EQ(reference::HalfFromFloat(0x1p-24F), 0x0001);  // the smallest
  EXPECT_EQ(reference::HalfFromFloat(0x1p-25F), 0x0000);  // tie, down to even
  EXPECT_EQ(reference::HalfFromFloat(0x1.002p-25F), 0x0001);
  EXPECT_EQ(reference::HalfFromFloat(0x1.FFFp-15F), 0x0400);  // up to the first normal
  EXPECT_EQ(reference::HalfFromFloat(-0.0F), 0x8000);
}

TEST(ElementTest, Bfloat16RoundsToNearestWithTiesToEven) {
  EXPECT_EQ(reference::Bfloat16FromFloat(1.0F), 0x3F80);
  EXPECT_EQ(reference::Bfloat16FromFloat(1.0F + 0x1p-8F), 0x3F80);  // tie, down to even
  EXPECT_EQ(reference::Bfloat16FromFloat(1.0F + 0x3p-8F), 0x3F82);  // tie, up to even
  EXPECT_EQ(reference::Bfloat16FromFloat(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_TRUE(std::isnan(reference::FloatFromBfloat16(
      reference::Bfloat16FromFloat(std::bit_cast<float>(0x7F800001)))));
}

TEST(ElementTest, EveryE4m3NumberSurvivesTheWayThroughFloat) {
  for (int bits = 0; bits < 0x100; ++bits) {
    auto number = static_cast<uint8_t>(bits);
    float value = reference::FloatFromE4m3(number);

    ASSERT_EQ(std::isnan(value), (bits & 0x7F) == 0x7F) << bits;
    ASSERT_EQ(reference::E4m3FromFloat(value), number) << bits;
  }
}

TEST(ElementTest, E4m3RoundsToNearestWithTiesToEvenAndHoldsAtTheLargest) {
  EXPECT_EQ(reference::E4m3FromFloat(1.0F), 0x38);
  EXPECT_EQ(reference::E4m3FromFloat(1.0F + 0x1p-4F), 0x38);    // tie, down to even
  EXPECT_EQ(reference::E4m3FromFloat(1.0F + 0x3p-4F), 0x3A);    // tie, up to even
  EXPECT_EQ(reference::E4m3FromFloat(1.0F + 0x1.1p-4F), 0x39);  // above the tie
  EXPECT_EQ(reference::E4m3FromFloat(448.0F), 0x7E);            // the largest
  EXPECT_EQ(reference::E4m3FromFloat(-1e9F), 0xFE);
  EXPECT_EQ(reference::E4m3FromFloat(0x1p-9F), 0x01);    // the smallest
  EXPECT_EQ(reference::E4m3FromFloat(0x1p-10F), 0x00);   // tie, down to even
  EXPECT_EQ(reference::E4m3FromFloat(0x1.Fp-7F), 0x08);  // tie, up to the first normal
  EXPECT_EQ(reference::E4m3FromFloat(-0.0F), 0x80);
}

TEST(ElementTest, AScaledVectorHasItsLargestNumberAtTheLargestOfTheType) {
  const std::vector<float> vector = {0.5F, -2.54F, 1.0F};
  std::vector<int8_t> stored(6, 77);

  float scale = reference::StoreScaledVector(stored.data(), DType::kInt8, 1, 2, vector.data(), 3);

  EXPECT_FLOAT_EQ(scale, 0.02F);
  EXPECT_THAT(stored, ElementsAre(77, 25, 77, -127, 77, 50));
}

TEST(PhiloxTest, GivesThePublishedNumbers) {
  // Known answers of the Random123 distribution, kat_vectors, philox4x32 with 10 rounds.
  EXPECT_THAT(reference::Philox4x32(0, {0, 0, 0, 0}),
              ElementsAre(0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8));
  EXPECT_THAT(reference::Philox4x32(~uint64_t{0}, {~0U, ~0U, ~0U, ~0U}),
              ElementsAre(0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD));
  EXPECT_THAT(
      reference::Philox4x32(0x299F31D0A4093822, {0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}),
      ElementsAre(0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1));
}

TEST(ReferenceNormTest, RmsNormDividesByTheRootOfTheMeanSquare) {
  std::vector<float> residual = {1.0F, 2.0F};
  std::vector<float> delta = {2.0F, 2.0F};
  std::vector<float> weight = {1.0F, 10.0F};
  std::vector<float> out(2);
  NormParams params;
  params.num_tokens = 1;
  params.width = 2;
  params.residual = residual.data();
  params.delta = delta.data();
  params.weight = weight.data();
  params.eps = 0.0F;
  params.out = out.data();

  CreateReferenceBackend()->Norm(params);

  EXPECT_THAT(residual, ElementsAre(3.0F, 4.0F));
  float root = std::sqrt(12.5F);
  EXPECT_THAT(out, Pointwise(FloatNear(1e-6F), {3.0F / root, 40.0F / root}));
}

TEST(ReferenceNormTest, LayerNormCentresFirst) {
  std::vector<float> residual = {1.0F, 3.0F};
  std::vector<float> weight = {1.0F, 10.0F};
  std::vector<float> bias = {0.5F, -0.5F};
  std::vector<float> out(2);
  NormParams params;
  params.kind = NormKind::kLayerNorm;
  params.num_tokens = 1;
  params.width = 2;
  params.residual = residual.data();
  params.weight = weight.data();
  params.bias = bias.data();
  params.eps = 0.0F;
  params.out = out.data();

  CreateReferenceBackend()->Norm(params);

  EXPECT_THAT(out, Pointwise(FloatNear(1e-6F), {-0.5F, 9.5F}));
}

TEST(ReferenceActivateTest, KnowsItsFunctions) {
  auto backend = CreateReferenceBackend();
  auto activate = [&backend](ActivationKind kind, float x) {
    float out = 0.0F;
    backend->Activate({kind, false, 1, 1, &x, &out});
    return out;
  };

  EXPECT_FLOAT_EQ(activate(ActivationKind::kSilu, 1.0F), 0.7310586F);
  EXPECT_FLOAT_EQ(activate(ActivationKind::kRelu, -1.0F), 0.0F);
  EXPECT_FLOAT_EQ(activate(ActivationKind::kRelu, 2.0F), 2.0F);
  EXPECT_FLOAT_EQ(activate(ActivationKind::kGelu, 1.0F), 0.8413447F);
  EXPECT_FLOAT_EQ(activate(ActivationKind::kGeluTanh, 1.0F), 0.8411920F);
}

TEST(ReferenceActivateTest, GatedTakesGateThenUp) {
  std::vector<float> in = {1.0F, 2.0F, 10.0F, 100.0F};
  std::vector<float> out(2);

  CreateReferenceBackend()->Activate({ActivationKind::kRelu, true, 1, 2, in.data(), out.data()});

  EXPECT_THAT(out, ElementsAre(10.0F, 200.0F));
}

TEST(ReferenceLinearTest, StacksItsPartsAndAddsTheBias) {
  auto backend = CreateReferenceBackend();
  std::vector<float> first = {1.0F, 2.0F};
  std::vector<float> second = {3.0F, 4.0F, 5.0F, 6.0F};
  std::vector<MatrixView> parts = {{first.data(), WeightFormat::kF32, 1, 2},
                                   {second.data(), WeightFormat::kF32, 2, 2}};
  std::vector<float> bias = {0.5F, 0.0F, -1.0F};
  auto packed = backend->PackLinear({parts, bias, 1});
  ASSERT_TRUE(packed.ok()) << packed.status();
  std::vector<float> x = {10.0F, 1.0F};
  std::vector<float> y(3);

  backend->Linear({1, x.data(), y.data(), packed->get()});

  EXPECT_THAT(y, ElementsAre(12.5F, 34.0F, 55.0F));
}

TEST(ReferenceLinearTest, RefusesPartsThatDisagree) {
  auto backend = CreateReferenceBackend();
  std::vector<float> data(12);
  std::vector<MatrixView> parts = {{data.data(), WeightFormat::kF32, 2, 3},
                                   {data.data(), WeightFormat::kF32, 3, 2}};
  std::vector<MatrixView> six_columns = {{data.data(), WeightFormat::kF32, 2, 6}};

  EXPECT_EQ(backend->PackLinear({parts, {}, 1}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backend->PackLinear({six_columns, {}, kTreeSegments}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ReferencePrepareAttentionTest, RotatesTheTwoHalvesOfAHead) {
  // One head of two dims, which are one pair; 90 degrees at position 1.
  std::vector<float> qkv = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F};
  std::vector<float> cos = {1.0F, 0.0F};
  std::vector<float> sin = {0.0F, 1.0F};
  std::vector<float> pool(8, -1.0F);
  int32_t position = 1;
  int64_t slot = 1;
  PrepareAttentionParams params;
  params.num_tokens = 1;
  params.num_heads = 1;
  params.qkv = qkv.data();
  params.rope_cos = cos.data();
  params.rope_sin = sin.data();
  params.positions = &position;
  params.slot_mapping = &slot;
  params.cache = {pool.data(), 1, TokenMajorKeys({1, 1, 2, 2, DType::kF32})};

  CreateReferenceBackend()->PrepareAttention(params);

  EXPECT_FLOAT_EQ(qkv[0], -2.0F);
  EXPECT_FLOAT_EQ(qkv[1], 1.0F);
  EXPECT_THAT(pool, ElementsAre(-1.0F, -1.0F, -4.0F, 3.0F, -1.0F, -1.0F, 5.0F, 6.0F));
}

TEST(ReferencePagedAttentionTest, EqualScoresAverageTheValuesInSight) {
  // q is zero, so that all scores are; values are the position.
  AttentionCase c;
  c.num_heads = 1;
  c.num_kv_heads = 1;
  c.head_dim = 2;
  c.dtype = DType::kF32;
  c.block_size_tokens = 2;
  c.change_value = [](int32_t position, float) { return static_cast<float>(position); };
  c.change_query = [](float) { return 0.0F; };
  c.sequences = std::vector<CaseSequence>{{3, 5, 1}};

  EXPECT_THAT(ReferenceAttention(c),
              Pointwise(FloatNear(1e-6F), {1.0F, 1.0F, 1.5F, 1.5F, 2.0F, 2.0F}));
  c.sliding_window = 2;
  EXPECT_THAT(ReferenceAttention(c),
              Pointwise(FloatNear(1e-6F), {1.5F, 1.5F, 2.5F, 2.5F, 3.5F, 3.5F}));
}

TEST(ReferencePagedAttentionTest, AlibiWeighsByTheDistanceToTheQuery) {
  // q is zero: the weight of a position is exp(slope * (position - query position)).
  AttentionCase c;
  c.num_heads = 1;
  c.num_kv_heads = 1;
  c.head_dim = 1;
  c.dtype = DType::kF32;
  c.block_size_tokens = 2;
  c.alibi = true;
  c.change_value = [](int32_t position, float) { return position == 0 ? 1.0F : 0.0F; };
  c.change_query = [](float) { return 0.0F; };
  c.sequences = std::vector<CaseSequence>{{3, 3, 1}};

  // The one head's slope is 1.
  const float near = std::exp(-1.0F);
  const float far = std::exp(-2.0F);
  EXPECT_THAT(ReferenceAttention(c),
              Pointwise(FloatNear(1e-6F), {1.0F, near / (1.0F + near), far / (1.0F + near + far)}));
}

TEST(ReferencePagedAttentionTest, WeightsAreTheSoftmaxOfTheScaledScores) {
  // One dim: k = 0, 1; q = 2, scale 1: weights 1 : e^2; values 0, 1.
  KvCacheLayout layout = TokenMajorKeys({1, 1, 1, 2, DType::kF32});
  std::vector<float> pool = {NAN, NAN, NAN, NAN, 0.0F, 1.0F, 0.0F, 1.0F};
  float q = 2.0F;
  float out = 0.0F;
  std::vector<int32_t> query_start = {0, 1};
  int32_t seq_len = 2;
  BlockId table = 1;
  PagedAttentionParams params;
  params.num_seqs = 1;
  params.num_heads = 1;
  params.q = &q;
  params.q_row_stride = 1;
  params.out = &out;
  params.query_start = query_start.data();
  params.seq_lens = &seq_len;
  params.block_tables = &table;
  params.max_blocks_per_seq = 1;
  params.cache = {pool.data(), 2, layout};

  CreateReferenceBackend()->PagedAttention(params);

  EXPECT_FLOAT_EQ(out, std::exp(2.0F) / (1.0F + std::exp(2.0F)));
}

// One row of logits through Sample.
struct Sampled {
  TokenId token = -1;
  float logprob = 0.0F;
  bool finite = false;
  std::vector<SampledLogprob> top;
};

Sampled SampleRow(std::vector<float> logits,
                  const SamplingParams& sampling,
                  std::vector<TokenId> prompt = {},
                  std::vector<TokenId> output = {}) {
  SamplingRow row;
  row.params = &sampling;
  row.prompt_token_ids = prompt;
  row.output_token_ids = output;
  Sampled sampled;
  sampled.top.resize(20);
  SampleParams params;
  params.num_rows = 1;
  params.vocab_size = static_cast<int32_t>(logits.size());
  params.row_stride = params.vocab_size;
  params.logits = logits.data();
  params.rows = &row;
  params.token_ids = &sampled.token;
  params.logprobs = &sampled.logprob;
  params.finite = &sampled.finite;
  params.top_logprobs = sampled.top.data();
  params.top_logprobs_stride = 20;
  CreateReferenceBackend()->Sample(params);
  return sampled;
}

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0.0F;
  return params;
}

TEST(ReferenceSampleTest, GreedyTakesTheLowestOfEqualTokens) {
  EXPECT_EQ(SampleRow({1.0F, 3.0F, 3.0F}, Greedy()).token, 1);
}

TEST(ReferenceSampleTest, LogprobsAreThoseOfTheModel) {
  SamplingParams params = Greedy();
  params.num_logprobs = 2;
  params.logit_bias = {{0, 50.0F}};

  Sampled sampled = SampleRow({0.0F, std::log(3.0F)}, params);

  EXPECT_EQ(sampled.token, 0);
  EXPECT_FLOAT_EQ(sampled.logprob, std::log(0.25F));
  EXPECT_EQ(sampled.top[0].token_id, 1);
  EXPECT_FLOAT_EQ(sampled.top[0].logprob, std::log(0.75F));
  EXPECT_EQ(sampled.top[1].token_id, 0);
}

TEST(ReferenceSampleTest, PenaltiesCountWhatTheyShould) {
  SamplingParams repetition = Greedy();
  repetition.repetition_penalty = 2.0F;
  EXPECT_EQ(SampleRow({3.0F, 2.0F}, repetition, {0}).token, 1);       // 1.5 against 2
  EXPECT_EQ(SampleRow({-1.0F, -1.5F}, repetition, {0}).token, 1);     // -2 against -1.5
  EXPECT_EQ(SampleRow({3.0F, 1.4F}, repetition, {0}, {0}).token, 0);  // once, not twice

  SamplingParams frequency = Greedy();
  frequency.frequency_penalty = 1.0F;
  EXPECT_EQ(SampleRow({3.0F, 1.5F}, frequency, {0, 0}, {0}).token, 0);  // 2: prompt is free
  EXPECT_EQ(SampleRow({3.0F, 1.5F}, frequency, {}, {0, 0}).token, 1);   // 1 against 1.5

  SamplingParams presence = Greedy();
  presence.presence_penalty = 1.0F;
  EXPECT_EQ(SampleRow({3.0F, 1.5F}, presence, {}, {0, 0}).token, 0);  // 2: once
}

TEST(ReferenceSampleTest, BannedTokensReturnAfterMinTokens) {
  SamplingParams params = Greedy();
  params.min_tokens = 1;
  params.banned_before_min_tokens = {1};

  EXPECT_EQ(SampleRow({1.0F, 3.0F, 2.0F}, params).token, 2);
  EXPECT_EQ(SampleRow({1.0F, 3.0F, 2.0F}, params, {}, {0}).token, 1);
}

TEST(ReferenceSampleTest, RowsThatAreNotFiniteSaySo) {
  EXPECT_FALSE(SampleRow({1.0F, NAN}, Greedy()).finite);
  EXPECT_FALSE(SampleRow({1.0F, INFINITY}, Greedy()).finite);
  EXPECT_TRUE(SampleRow({1.0F, 2.0F}, Greedy()).finite);
}

// How often each of four tokens of probability 0.4, 0.3, 0.2, 0.1 comes out.
std::array<double, 4> Frequencies(SamplingParams params) {
  constexpr int kDraws = 4000;
  std::array<double, 4> frequencies = {};
  for (int i = 0; i < kDraws; ++i) {
    params.seed = static_cast<uint64_t>(i);
    Sampled sampled =
        SampleRow({std::log(0.4F), std::log(0.3F), std::log(0.2F), std::log(0.1F)}, params);
    frequencies.at(static_cast<size_t>(sampled.token)) += 1.0 / kDraws;
  }
  return frequencies;
}

// Four standard deviations of a frequency of 4,000 fixed draws.
constexpr double kFrequencyError = 0.032;

void ExpectFrequencies(const SamplingParams& params, std::array<double, 4> expected) {
  std::array<double, 4> frequencies = Frequencies(params);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(frequencies.at(i), expected.at(i), expected.at(i) == 0.0 ? 0.0 : kFrequencyError);
  }
}

TEST(ReferenceSampleTest, DrawsFollowTheProbabilitiesThatAreLeft) {
  SamplingParams params;
  ExpectFrequencies(params, {0.4, 0.3, 0.2, 0.1});
  params.top_k = 2;
  ExpectFrequencies(params, {4.0 / 7, 3.0 / 7, 0.0, 0.0});
  params.top_k = 0;
  params.top_p = 0.75F;
  ExpectFrequencies(params, {4.0 / 9, 3.0 / 9, 2.0 / 9, 0.0});
  params.top_p = 1.0F;
  params.min_p = 0.6F;
  ExpectFrequencies(params, {4.0 / 7, 3.0 / 7, 0.0, 0.0});
  params.min_p = 0.0F;
  params.temperature = 0.5F;
  ExpectFrequencies(params, {16.0 / 30, 9.0 / 30, 4.0 / 30, 1.0 / 30});
}

}  // namespace
}  // namespace quire
