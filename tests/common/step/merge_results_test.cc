#include "common/step/merge_results.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/error.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StepResult Result() {
  StepResult result;
  result.header = {.scheduler_incarnation = 1, .group_epoch = 2, .step_id = 3};
  result.plan_digest = 99;
  result.sampled = {{.handle = 4, .token_id = 7, .logprob = -0.5F},
                    {.handle = 5, .token_id = 8, .logprob = -1.5F}};
  result.swaps_done_step_id = 3;
  result.row_hash = 11;
  return result;
}

TEST(MergeResultsTest, OneRankIsTakenAsItIs) { EXPECT_EQ(*MergeResults({Result()}, {}), Result()); }

TEST(MergeResultsTest, RanksThatAgreeGiveTheFirstOnesLogprobs) {
  StepResult second = Result();
  second.sampled[0].logprob = -9.0F;

  EXPECT_EQ(*MergeResults({Result(), second, Result()}, {}), Result());
}

TEST(MergeResultsTest, SwapsAreDoneWhenAllHaveDoneThem) {
  StepResult second = Result();
  second.swaps_done_step_id = 1;

  EXPECT_EQ(MergeResults({Result(), second}, {})->swaps_done_step_id, 1U);
}

TEST(MergeResultsTest, TheSlowestRankCountsAndEachTimingByItself) {
  StepResult first = Result();
  StepResult second = Result();
  first.timings = {.build_us = 5, .forward_us = 10, .sample_us = 1, .collective_us = 7};
  second.timings = {.build_us = 4, .forward_us = 30, .sample_us = 2, .collective_us = 3};

  const StepTimings expected = {
      .build_us = 5, .forward_us = 30, .sample_us = 2, .collective_us = 3};
  EXPECT_EQ(MergeResults({first, second}, {})->timings, expected);
}

TEST(MergeResultsTest, FailedSwapInsOfAnyRankComeOnceInTheOrderOfThePlan) {
  const std::vector<BlockSwapIn> swap_ins = {{.block = 9}, {.block = 2}, {.block = 5}};
  StepResult first = Result();
  StepResult second = Result();
  StepResult third = Result();
  first.failed_swap_ins = {5};
  second.failed_swap_ins = {9, 5};

  EXPECT_THAT(MergeResults({first, second, third}, swap_ins)->failed_swap_ins, ElementsAre(9, 5));
}

TEST(MergeResultsTest, ARowHashOfZeroPromisesNothing) {
  StepResult second = Result();
  second.row_hash = 0;

  EXPECT_TRUE(MergeResults({Result(), second}, {}).ok());
  EXPECT_TRUE(MergeResults({second, Result()}, {}).ok());
}

struct Difference {
  std::string field;
  std::function<void(StepResult&)> spoil;
};

class RanksDifferTest : public testing::TestWithParam<Difference> {};

TEST_P(RanksDifferTest, TheRankAndTheFieldAreNamed) {
  StepResult wrong = Result();
  GetParam().spoil(wrong);

  const absl::Status status = MergeResults({Result(), Result(), wrong}, {}).status();

  EXPECT_EQ(ReasonOf(status), "RANKS_DIFFER");
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2: " + GetParam().field + ": "));
}

TEST_P(RanksDifferTest, TheFirstRankIsNamedWhenAllOthersAgreeAgainstIt) {
  StepResult wrong = Result();
  GetParam().spoil(wrong);

  const absl::Status status = MergeResults({wrong, Result(), Result()}, {}).status();

  EXPECT_EQ(ReasonOf(status), "RANKS_DIFFER");
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0: " + GetParam().field + ": "));
}

INSTANTIATE_TEST_SUITE_P(
    EveryField,
    RanksDifferTest,
    testing::Values(Difference{"header", [](auto& r) { ++r.header.step_id; }},
                    Difference{"header", [](auto& r) { ++r.plan_digest; }},
                    Difference{"token_id", [](auto& r) { r.sampled[1].token_id = 0; }},
                    Difference{"token_id", [](auto& r) { r.sampled[0].handle = 1; }},
                    Difference{"token_id", [](auto& r) { r.sampled[0].finite = false; }},
                    Difference{"token_id", [](auto& r) { r.sampled.pop_back(); }},
                    Difference{"row_hash", [](auto& r) { r.row_hash = 12; }}));

}  // namespace
}  // namespace quire
