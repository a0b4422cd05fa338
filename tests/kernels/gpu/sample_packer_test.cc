#include "kernels/gpu/sample_packer.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using testing::ElementsAre;

struct Adjustment {
  TokenId token_id;
  float bias;
  int32_t output_count;
  int32_t in_context;

  friend bool operator==(const Adjustment&, const Adjustment&) = default;
};

std::vector<Adjustment> AdjustmentsOf(const SamplePacker& packer, size_t row) {
  const gpu::SampleRow& packed = packer.rows()[row];
  std::vector<Adjustment> all;
  for (int32_t i = 0; i < packed.num_adjustments; ++i) {
    const auto& a = packer.adjustments()[static_cast<size_t>(packed.first_adjustment + i)];
    all.push_back({a.token_id, a.bias, a.output_count, a.in_context});
  }
  return all;
}

TEST(SamplePackerTest, ARowWithoutPenaltiesLooksAtNoToken) {
  const std::vector<TokenId> prompt = {1, 2, 3};
  const std::vector<TokenId> output = {4, 5};
  const SamplingParams params = {.temperature = 0.5F, .top_k = 7, .num_logprobs = 3, .seed = 99};
  const SamplingRow row = {
      .params = &params, .prompt_token_ids = prompt, .output_token_ids = output};
  SamplePacker packer;

  packer.Pack({.num_rows = 1, .rows = &row});

  ASSERT_EQ(packer.rows().size(), 1U);
  const gpu::SampleRow& packed = packer.rows()[0];
  EXPECT_EQ(packed.temperature, 0.5F);
  EXPECT_EQ(packed.top_k, 7);
  EXPECT_EQ(packed.num_logprobs, 3);
  EXPECT_EQ(packed.seed, 99U);
  EXPECT_EQ(packed.token_index, 2);
  EXPECT_EQ(packed.num_adjustments, 0);
}

TEST(SamplePackerTest, ATokenAppearsOnceWithEverythingThatChangesIt) {
  const std::vector<TokenId> prompt = {8, 3, 8};
  const std::vector<TokenId> output = {5, 3, 5};
  SamplingParams params = {.repetition_penalty = 1.5F};
  params.logit_bias = {{5, 2.0F}, {9, -1.0F}};
  const SamplingRow row = {
      .params = &params, .prompt_token_ids = prompt, .output_token_ids = output};
  SamplePacker packer;

  packer.Pack({.num_rows = 1, .rows = &row});

  EXPECT_THAT(AdjustmentsOf(packer, 0),
              ElementsAre(Adjustment{3, 0.0F, 1, 1},
                          Adjustment{5, 2.0F, 2, 1},
                          Adjustment{8, 0.0F, 0, 1},
                          Adjustment{9, -1.0F, 0, 0}));
}

TEST(SamplePackerTest, TokensAreBannedOnlyWhileTheOutputIsTooShort) {
  const std::vector<TokenId> output = {5, 6};
  SamplingParams params;
  params.banned_before_min_tokens = {1};
  params.min_tokens = 3;
  SamplingParams enough = params;
  enough.min_tokens = 2;
  const std::vector<SamplingRow> rows = {{.params = &params, .output_token_ids = output},
                                         {.params = &enough, .output_token_ids = output}};
  SamplePacker packer;

  packer.Pack({.num_rows = 2, .rows = rows.data()});

  EXPECT_THAT(AdjustmentsOf(packer, 0), ElementsAre(Adjustment{1, -INFINITY, 0, 0}));
  EXPECT_TRUE(AdjustmentsOf(packer, 1).empty());
}

}  // namespace
}  // namespace quire
