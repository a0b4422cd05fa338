#include "worker/model/rope_table.h"

#include <cmath>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/reference/reference_backend.h"
#include "worker/model/rope_frequencies.h"

namespace quire {
namespace {

constexpr int32_t kTokens = 4096;  // longest context

TEST(RopeTableTest, FrequenciesFallGeometricallyFromOne) {
  const std::vector<float> frequencies =
      InverseFrequencies({.theta = 10000.0}, /*head_dim=*/8, kTokens);

  ASSERT_EQ(frequencies.size(), 4U);
  EXPECT_FLOAT_EQ(frequencies[0], 1.0F);
  EXPECT_FLOAT_EQ(frequencies[1], 0.1F);
  EXPECT_FLOAT_EQ(frequencies[2], 0.01F);
  EXPECT_FLOAT_EQ(frequencies[3], 0.001F);
}

TEST(RopeTableTest, LinearScalingDividesEveryFrequency) {
  const RopeConfig rope = {.theta = 10000.0, .scaling = RopeScalingKind::kLinear, .factor = 4.0};

  const std::vector<float> frequencies = InverseFrequencies(rope, /*head_dim=*/4, kTokens);

  EXPECT_FLOAT_EQ(frequencies[0], 0.25F);
  EXPECT_FLOAT_EQ(frequencies[1], 0.0025F);
}

// Printed by transformers 5 for theta 500000, factor 8, low 1, high 4, 8192 positions, head_dim 16:
// the first ones are kept, the last divided by 8, one between is interpolated.
TEST(RopeTableTest, Llama3ScalingGivesTransformersFrequencies) {
  const RopeConfig rope = {.theta = 500000.0,
                           .scaling = RopeScalingKind::kLlama3,
                           .factor = 8.0,
                           .low_freq_factor = 1.0,
                           .high_freq_factor = 4.0,
                           .original_max_position_embeddings = 8192};

  const std::vector<float> frequencies = InverseFrequencies(rope, /*head_dim=*/16, kTokens);

  const std::vector<float> expected = {1.0F,
                                       0.193922758F,
                                       0.0376060307F,
                                       0.00729266508F,
                                       0.000524846022F,
                                       3.42810235e-05F,
                                       6.64786967e-06F,
                                       1.28917316e-06F};
  ASSERT_EQ(frequencies.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_FLOAT_EQ(frequencies[i], expected[i]) << i;
  }
}

// The factors are those of a GGUF file's rope_freqs.weight.
TEST(RopeTableTest, FactorsDivideTheirFrequencies) {
  const RopeConfig rope = {
      .theta = 10000.0, .scaling = RopeScalingKind::kFactors, .factors = {1.0F, 4.0F}};

  const std::vector<float> frequencies = InverseFrequencies(rope, /*head_dim=*/4, kTokens);

  EXPECT_FLOAT_EQ(frequencies[0], 1.0F);
  EXPECT_FLOAT_EQ(frequencies[1], 0.0025F);
}

TEST(RopeTableTest, DynamicScalingFollowsTheLongestContext) {
  const RopeConfig rope = {.theta = 10000.0,
                           .scaling = RopeScalingKind::kDynamic,
                           .factor = 2.0,
                           .original_max_position_embeddings = 100};
  const std::vector<float> plain = InverseFrequencies({.theta = 10000.0}, /*head_dim=*/4, 200);

  EXPECT_EQ(InverseFrequencies(rope, /*head_dim=*/4, 50), plain);
  EXPECT_EQ(InverseFrequencies(rope, /*head_dim=*/4, 100), plain);
  // theta grows by (2 * 200 / 100 - 1)^(4 / 2) = 9.
  EXPECT_FLOAT_EQ(InverseFrequencies(rope, /*head_dim=*/4, 200)[1], plain[1] / 3.0F);
}

TEST(RopeTableTest, LongRopeUsesItsLongFactorsBeyondTheOriginalLength) {
  const RopeConfig rope = {.theta = 10000.0,
                           .scaling = RopeScalingKind::kLongRope,
                           .original_max_position_embeddings = 100,
                           .factors = {1.0F, 2.0F},
                           .long_factors = {1.0F, 5.0F}};

  EXPECT_FLOAT_EQ(InverseFrequencies(rope, /*head_dim=*/4, 100)[1], 0.005F);
  EXPECT_FLOAT_EQ(InverseFrequencies(rope, /*head_dim=*/4, 101)[1], 0.002F);
}

TEST(RopeTableTest, AttentionFactorScalesCosinesAndSines) {
  std::unique_ptr<KernelBackend> backend = CreateReferenceBackend();
  RopeTable plain({.theta = 10000.0}, /*head_dim=*/8, kTokens, *backend);
  RopeTable scaled({.theta = 10000.0, .attention_factor = 1.5F}, /*head_dim=*/8, kTokens, *backend);

  ASSERT_TRUE(plain.Reserve(10).ok());
  ASSERT_TRUE(scaled.Reserve(10).ok());

  for (size_t i = 0; i < 10 * 4; ++i) {
    EXPECT_EQ(scaled.cos()[i], 1.5F * plain.cos()[i]);
    EXPECT_EQ(scaled.sin()[i], 1.5F * plain.sin()[i]);
  }
}

// Cosines and sines printed by transformers for theta 10000 and head_dim 8, where rounding the
// angle in another order shows: the exact values at 99,999 differ in the fourth decimal.
TEST(RopeTableTest, LongPositionsGiveTransformersAngles) {
  std::unique_ptr<KernelBackend> backend = CreateReferenceBackend();
  RopeTable table({.theta = 10000.0}, /*head_dim=*/8, kTokens, *backend);

  ASSERT_TRUE(table.Reserve(100'001).ok());

  const std::vector<int64_t> positions = {0, 1, 4095, 32769, 99999, 100000};
  const std::vector<float> cosines = {
      1.0F,          1.0F,         1.0F,           1.0F,          0.540302336F,  0.995004177F,
      0.999949992F,  0.999999523F, -0.0659759939F, 0.459863335F,  -0.994033098F, -0.578907907F,
      -0.579264998F, -0.97611326F, 0.569937587F,   0.216005817F,  -0.509875357F, -0.97782737F,
      0.57062763F,   0.861816227F, -0.9993608F,    -0.952155352F, 0.562379062F,  0.862322748F};
  const std::vector<float> sines = {0.0F,          0.0F,          0.0F,           0.0F,
                                    0.841470957F,  0.0998334214F, 0.00999983307F, 0.000999999931F,
                                    -0.997821212F, 0.8879897F,    -0.109078795F,  -0.815392911F,
                                    0.815139294F,  -0.217262194F, 0.821687996F,   0.97639209F,
                                    0.860248268F,  -0.209412649F, 0.821208894F,   -0.507220685F,
                                    0.0357487984F, -0.305614382F, 0.826879561F,   -0.506359041F};
  for (size_t i = 0; i < positions.size(); ++i) {
    for (size_t j = 0; j < 4; ++j) {
      const auto at = static_cast<size_t>(positions[i]) * 4 + j;
      EXPECT_NEAR(table.cos()[at], cosines[i * 4 + j], 1e-6) << positions[i] << ", " << j;
      EXPECT_NEAR(table.sin()[at], sines[i * 4 + j], 1e-6) << positions[i] << ", " << j;
    }
  }
}

TEST(RopeTableTest, GrowingKeepsWhatWasThere) {
  std::unique_ptr<KernelBackend> backend = CreateReferenceBackend();
  RopeTable grown({.theta = 10000.0}, /*head_dim=*/8, kTokens, *backend);
  RopeTable whole({.theta = 10000.0}, /*head_dim=*/8, kTokens, *backend);

  ASSERT_TRUE(grown.Reserve(1).ok());
  ASSERT_TRUE(grown.Reserve(5000).ok());
  ASSERT_TRUE(whole.Reserve(5000).ok());

  ASSERT_GE(grown.num_positions(), 5000);
  for (size_t i = 0; i < 5000 * 4; ++i) {
    ASSERT_EQ(grown.cos()[i], whole.cos()[i]);
    ASSERT_EQ(grown.sin()[i], whole.sin()[i]);
  }
}

}  // namespace
}  // namespace quire
