#include "scheduler/sim/cost_model.h"

#include <string>

#include "gtest/gtest.h"

#include "scheduler/sim/swap_cost.h"

namespace quire {
namespace {

Platform Find(const char* name) {
  absl::StatusOr<Platform> platform = FindPlatform(name);
  EXPECT_TRUE(platform.ok()) << platform.status();
  return *platform;
}

TEST(PlatformTest, SlotsAreThePublishedOnesOfTable1) {
  EXPECT_EQ(Find("a100-opt-13b").num_kv_slots(), 15728);
  EXPECT_EQ(Find("a100x4-opt-66b").num_kv_slots(), 9693);
  EXPECT_EQ(Find("a100x8-opt-175b").num_kv_slots(), 60074);
  EXPECT_EQ(Find("a100-opt-13b").model.kv_bytes_per_token(), 800 * 1024);
  EXPECT_EQ(Find("h100-llama3-8b").model.kv_bytes_per_token(), 128 * 1024);
}

TEST(PlatformTest, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const absl::Status status = FindPlatform("tpu").status();

  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("h200-llama3-8b"), std::string::npos);
}

TEST(CostModelTest, AFewTokensCostTheReadingOfTheWeightsAndManyTheProducts) {
  const CostModel cost(Find("a100-opt-13b"), 16);
  const double read_s = 26e9 / (1555e9 * 0.8);

  EXPECT_DOUBLE_EQ(cost.LinearSeconds(1), read_s);
  EXPECT_DOUBLE_EQ(cost.LinearSeconds(100), read_s);
  EXPECT_DOUBLE_EQ(cost.LinearSeconds(1000), 2 * 13e9 * 1000 / (312e12 * 0.5));
}

TEST(CostModelTest, AttentionReadsTheContextAndPaysForTheBlockTable) {
  const Platform platform = Find("a100-opt-13b");
  const double contiguous_s = 10'000 * 819'200.0 / (1555e9 * 0.8);

  EXPECT_DOUBLE_EQ(CostModel(platform, kContiguous).AttentionSeconds(10'000), contiguous_s);
  EXPECT_DOUBLE_EQ(CostModel(platform, 16).AttentionSeconds(10'000), 1.23 * contiguous_s);
  EXPECT_DOUBLE_EQ(CostModel(platform, 256).AttentionSeconds(10'000), 1.23 * contiguous_s);
  EXPECT_GT(CostModel(platform, 1).AttentionSeconds(10'000), 2 * 1.23 * contiguous_s);
}

TEST(CostModelTest, AttentionTakesTheLongerOfReadingAndMultiplying) {
  const Platform platform = Find("a100-yi-6b");
  const CostModel cost(platform, kContiguous);
  const auto attention_s = [&](int64_t num_tokens, int64_t num_context_tokens) {
    const StepWork work = {
        .num_tokens = num_tokens,
        .num_context_tokens = num_context_tokens,
        .num_sequences = 1,
        .num_attended_tokens = NumAttendedTokens(num_tokens, num_context_tokens)};
    return cost.StepSeconds(work) - 5e-3 - 8e-3 / 256 - cost.LinearSeconds(num_tokens);
  };

  EXPECT_NEAR(attention_s(1, 50'000), cost.AttentionSeconds(50'000), 1e-12);
  EXPECT_NEAR(
      attention_s(50'000, 50'000), 4.0 * 4096 * 32 * 50'000 * 50'001 / 2 / (312e12 * 0.5), 1e-9);
}

TEST(CostModelTest, ATokenLooksAtItselfAndAllBeforeIt) {
  EXPECT_EQ(NumAttendedTokens(1, 7), 7);
  EXPECT_EQ(NumAttendedTokens(4, 4), 1 + 2 + 3 + 4);
  EXPECT_EQ(NumAttendedTokens(3, 10), 8 + 9 + 10);
}

TEST(PlatformTest, ModelsOfTheVattentionPaperHaveItsBytesAToken) {
  EXPECT_EQ(Find("a100-yi-6b").model.kv_bytes_per_token(), 64 * 1024);
  EXPECT_EQ(Find("a100x2-llama3-8b").model.kv_bytes_per_token(), 128 * 1024);
  EXPECT_EQ(Find("a100x2-yi-34b").model.kv_bytes_per_token(), 240 * 1024);
}

TEST(CostModelTest, SeveralGpusShareTheWorkAndPayForSums) {
  Platform one = Find("a100x4-opt-66b");
  Platform four = one;
  one.num_gpus = 1;

  EXPECT_DOUBLE_EQ(CostModel(one, 16).LinearSeconds(1), 4 * CostModel(four, 16).LinearSeconds(1));
  EXPECT_EQ(CostModel(one, 16).ReduceSeconds(100), 0);
  EXPECT_NEAR(CostModel(four, 16).ReduceSeconds(0), 64 * 2 * 15e-6, 1e-12);
  EXPECT_GT(CostModel(four, 16).ReduceSeconds(100), CostModel(four, 16).ReduceSeconds(0));
}

TEST(CostModelTest, AStepIsTheSumOfItsParts) {
  const Platform platform = Find("a100x8-opt-175b");
  const CostModel cost(platform, 16);
  const StepWork work = {.num_tokens = 40, .num_context_tokens = 5000, .num_sequences = 32};

  EXPECT_NEAR(cost.StepSeconds(work),
              5e-3 + 32 * 8e-3 / 256 + cost.LinearSeconds(40) + cost.AttentionSeconds(5000) +
                  cost.ReduceSeconds(40),
              1e-12);
}

TEST(SwapCostTest, LayerMajorSwapOfSingleTokensPaysForEachCopy) {
  const Platform platform = Find("a100-opt-13b");

  EXPECT_NEAR(SwapSeconds(platform, BlockLayout::kLayerMajor, 1, 256), 2 * 256 * 80 * 3.8e-6, 1e-9);
  EXPECT_NEAR(
      SwapSeconds(platform, BlockLayout::kLayerMajor, 256, 256), 2 * 256 * 819'200.0 / 25e9, 1e-9);
}

TEST(SwapCostTest, BlockMajorSwapOfSingleTokensTakesAtMostTwiceThatOfLongBlocks) {
  for (const char* name : {"a100-opt-13b", "a100x4-opt-66b", "a100x8-opt-175b"}) {
    const double shortest = SwapSeconds(Find(name), BlockLayout::kBlockMajor, 1, 256);
    const double longest = SwapSeconds(Find(name), BlockLayout::kBlockMajor, 256, 256);
    EXPECT_LE(shortest, 2 * longest) << name;
  }
}

TEST(SwapCostTest, WholeBlocksAreMoved) {
  const Platform platform = Find("a100-opt-13b");

  EXPECT_DOUBLE_EQ(SwapSeconds(platform, BlockLayout::kBlockMajor, 16, 17),
                   SwapSeconds(platform, BlockLayout::kBlockMajor, 16, 32));
}

TEST(SwapCostTest, RecomputingHardlyDependsOnTheBlockSize) {
  const Platform platform = Find("a100-opt-13b");

  EXPECT_LE(RecomputeSeconds(platform, 1, 256), 1.1 * RecomputeSeconds(platform, 256, 256));
  EXPECT_GT(RecomputeSeconds(platform, 16, 512), 1.9 * RecomputeSeconds(platform, 16, 256));
}

}  // namespace
}  // namespace quire
