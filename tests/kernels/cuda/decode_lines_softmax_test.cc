// Sinks and soft caps of decode by lines, and the kernels that refuse them.
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/gpu_ops.h"
#include "tests/kernels/cuda/attention_data.h"
#include "tests/kernels/cuda/line_decode.h"
#include "tests/kernels/cuda/line_types.h"

namespace quire::gpu {
namespace {

class DecodeLinesSoftmaxTest : public TypesAndSizeTest {};

TEST_P(DecodeLinesSoftmaxTest, SinksSoftCapWindowAndAlibiWorkTogether) {
  for (const bool alibi : {false, true}) {
    for (const int32_t window : {0, 90}) {
      SCOPED_TRACE(testing::Message() << "alibi " << alibi << ", window " << window);
      AttentionProblem problem = Problem();
      problem.num_heads = 4;
      problem.sliding_window = window;
      problem.alibi = alibi;
      problem.query_size = 5.0F;
      problem.soft_cap = 4.0F;
      problem.sinks = {0.0F, 3.0F, -2.0F, 6.0F};
      problem.sequences = {{.query_len = 1, .seq_len = 200, .key = 1},
                           {.query_len = 5, .seq_len = 130, .key = 2},
                           {.query_len = 1, .seq_len = 1, .key = 3}};
      ExpectDecodes(problem);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DecodeLinesSoftmaxTest, AllTypesAndSizes(), NameOfTypesAndSize);

TEST(DecodeLinesSinksTest, ASinkIsAddedOnceHoweverManyCtasShareTheLine) {
  // A line of 7 segments.
  const AttentionData data({.dtype = DType::kF16,
                            .cache_dtype = DType::kF16,
                            .num_heads = 3,
                            .num_kv_heads = 1,
                            .sinks = {3.0F, 0.0F, 8.0F},
                            .sequences = SequencesOf({420})});
  const std::vector<uint16_t> expected = Decoded(data, {.num_ctas = 1});
  ExpectClose(data, expected);
  for (const int32_t num_ctas : {2, 3, 7}) {
    EXPECT_EQ(Decoded(data, {.num_ctas = num_ctas}), expected) << num_ctas;
  }
}

TEST(DecodeLinesSinksTest, ASinkMayBeAboveOrBelowAllScores) {
  AttentionProblem problem = {.query_size = 10.0F, .sequences = SequencesOf({150, 1})};
  problem.sinks = {25.0F, -200.0F, 40.0F, 0.0F};
  ExpectDecodes(problem);
}

TEST(DecodeLinesSinksTest, ASinkOfMinusInfinityChangesNoBit) {
  AttentionProblem problem = {.sequences = SequencesOf({150, 70, 1})};
  const std::vector<uint16_t> expected = Decoded(AttentionData(problem));
  problem.sinks.assign(4, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(Decoded(AttentionData(problem)), expected);
}

TEST(DecodeLinesSoftCapTest, ScoresMayBeFarBelowOrAboveTheCap) {
  for (const float cap : {0.5F, 5.0F, 50.0F, 10000.0F}) {
    for (const float query_size : {0.1F, 10.0F, 1000.0F}) {
      SCOPED_TRACE(testing::Message() << "cap " << cap << ", queries " << query_size);
      ExpectDecodes({.dtype = DType::kF16,
                     .cache_dtype = DType::kF16,
                     .soft_cap = cap,
                     .query_size = query_size,
                     .sequences = SequencesOf({150, 64})});
    }
  }
}

// A kernel that cannot compute sinks or soft caps must refuse them. It must not ignore them.
TEST(DecodeLinesSoftCapTest, OtherKernelsRefuseSinksAndSoftCaps) {
  AttentionProblem plain = {.sequences = SequencesOf({10})};
  AttentionProblem capped = plain;
  capped.soft_cap = 5.0F;
  AttentionProblem sunk = plain;
  sunk.sinks.assign(4, 0.0F);
  const DeviceArray<PrefillItem> items(std::vector<PrefillItem>{{}});
  for (const AttentionProblem* problem : {&plain, &capped, &sunk}) {
    const int expected = problem == &plain ? 0 : kUnsupported;
    DeviceAttention device((AttentionData(*problem)));
    LineDecode decode(device.params(), {});
    DecodePlan plan = decode.plan();
    plan.kernel = DecodeKernel::kSplits;
    plan.partial_out = nullptr;
    ASSERT_EQ(PlanDecode(device.params(), plan, const_cast<int32_t*>(plan.split_start), nullptr),
              0);

    EXPECT_EQ(Decode(device.params(), plan, DType::kBF16, nullptr), expected);
    for (const PrefillKernel kernel : {PrefillKernel::kMma, PrefillKernel::kWgmma}) {
      const PrefillPlan prefill = {.items = items.data(), .num_items = 1, .kernel = kernel};
      EXPECT_EQ(Prefill(device.params(), prefill, DType::kBF16, nullptr), expected);
    }
  }
}

}  // namespace
}  // namespace quire::gpu
