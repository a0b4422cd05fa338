#include "scheduler/sim/swap_link.h"

#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

// A block of 16 tokens of OPT-13B is 16 * 819,200 bytes: at 25 GB/s it takes 524,288 ns.
constexpr Instant kBlockTime = 524'288;
constexpr Instant kSubmitTime = 3'800;

class SwapLinkTest : public ::testing::Test {
 protected:
  static StepPlan Plan(uint64_t step_id, int num_outs, int num_ins, int first_host_block = 0) {
    StepPlan plan{.header = {.step_id = step_id}, .slices = {{.handle = 0, .num_tokens = 1}}};
    for (int i = 0; i < num_outs; ++i) {
      plan.swap_outs.push_back({.block = i + 1, .host_block = first_host_block + i});
    }
    for (int i = 0; i < num_ins; ++i) {
      plan.swap_ins.push_back({.block = i + 1, .host_block = first_host_block + i});
    }
    return plan;
  }

  SwapLink link_{*FindPlatform("a100-opt-13b"),
                 BlockLayout::kBlockMajor,
                 {.num_host_blocks = 100, .block_size_tokens = 16}};
};

TEST_F(SwapLinkTest, AStepWithoutSwapsBeginsAtOnce) {
  EXPECT_EQ(link_.Begin(Plan(1, 0, 0), 7), 7);
  EXPECT_EQ(link_.SwapsDone(1, 7), 1U);
}

TEST_F(SwapLinkTest, BlocksLeaveBesideTheStep) {
  EXPECT_EQ(link_.Begin(Plan(1, 10, 0), 0), 10 * kSubmitTime) << "handed over one by one";

  EXPECT_EQ(link_.SwapsDone(1, 10 * kBlockTime - 1), 0U);
  EXPECT_EQ(link_.SwapsDone(2, 10 * kBlockTime), 2U);
}

TEST_F(SwapLinkTest, WhatComesInIsWaitedFor) {
  EXPECT_EQ(link_.Begin(Plan(1, 0, 4), 1000), 1000 + 4 * kBlockTime);
}

TEST_F(SwapLinkTest, DirectionsDoNotWaitForEachOther) {
  link_.Begin(Plan(1, 50, 0), 0);

  EXPECT_EQ(link_.Begin(Plan(2, 0, 2, 90), 1000), 1000 + 2 * kBlockTime);
  EXPECT_EQ(link_.SwapsDone(2, 40 * kBlockTime), 0U) << "step 1 is not done";
}

TEST_F(SwapLinkTest, OneDirectionTakesItsOrdersInTurn) {
  link_.Begin(Plan(1, 50, 0), 0);
  link_.Begin(Plan(2, 10, 0, 50), 1000);

  EXPECT_EQ(link_.SwapsDone(2, 50 * kBlockTime), 1U);
  EXPECT_EQ(link_.SwapsDone(2, 60 * kBlockTime - 1), 1U);
  EXPECT_EQ(link_.SwapsDone(2, 60 * kBlockTime), 2U);
}

TEST_F(SwapLinkTest, WhatIsStillLeavingComesBackAfterThat) {
  link_.Begin(Plan(1, 10, 0), 0);

  EXPECT_EQ(link_.Begin(Plan(2, 0, 10), 1000), 20 * kBlockTime);
}

TEST_F(SwapLinkTest, AStepWithoutSlicesWaitsForEverything) {
  link_.Begin(Plan(1, 10, 0), 0);
  StepPlan wait = Plan(2, 0, 0);
  wait.slices.clear();

  EXPECT_EQ(link_.Begin(wait, 5), 10 * kBlockTime);
}

TEST_F(SwapLinkTest, PiecesByLayerAreHandedOverEach) {
  SwapLink by_layers(*FindPlatform("a100-opt-13b"),
                     BlockLayout::kLayerMajor,
                     {.num_host_blocks = 100, .block_size_tokens = 1});

  EXPECT_EQ(by_layers.Begin(Plan(1, 10, 0), 0), 10 * 80 * kSubmitTime);
}

}  // namespace
}  // namespace quire
