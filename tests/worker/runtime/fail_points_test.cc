#include "worker/runtime/fail_points.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace quire {
namespace {

TEST(FailPointsTest, NoTextIsNoFailPoint) {
  auto list = ParseFailPoints("");

  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(*list, FailPointList());
}

TEST(FailPointsTest, EveryPointIsRead) {
  auto list = ParseFailPoints(
      "stick-at-step=5,stick-when-idle=3,slow-step=6:60000,crash-on-token=0,stick-on-token=9,"
      "crash-before-step=7,crash-after-step=8,wrong-digests,stick-in-load,slow-load=250");

  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(*list,
            (FailPointList{.stick_at_step = 5,
                           .stick_when_idle = 3,
                           .slow_step = 6,
                           .slow_step_millis = 60000,
                           .crash_on_token = 0,
                           .stick_on_token = 9,
                           .crash_before_step = 7,
                           .crash_after_step = 8,
                           .has_wrong_digests = true,
                           .stick_in_load = true,
                           .slow_load_millis = 250}));
}

TEST(FailPointsTest, MistakesAreNamed) {
  for (const char* text : {"stick",
                           "stick-at-step",
                           "stick-at-step=",
                           "stick-at-step=0",
                           "stick-at-step=-1",
                           "stick-at-step=1x",
                           "stick-at-step=1,stick-at-step=2",
                           "slow-step=5",
                           "slow-step=5:",
                           "slow-step=:5",
                           "slow-step=5:6:7",
                           "slow-step=5:0",
                           "crash-on-token=-1",
                           "crash-on-token=2147483648",
                           "stick-on-token=",
                           "wrong-digests=1",
                           "stick-in-load=yes",
                           "slow-load=99999999999",
                           "slow-load=250,",
                           ",",
                           " "}) {
    const absl::Status status = ParseFailPoints(text).status();

    EXPECT_EQ(ReasonOf(status), "FLAG") << text;
    EXPECT_EQ(std::string(status.message()).rfind("--fail-points: ", 0), 0U) << status;
  }
}

TEST(FailPointsTest, ASlowStepMakesProgressAndTheOthersAreNotSlow) {
  int num_ticks = 0;
  FailPoints points({.slow_step = 2, .slow_step_millis = 35}, [&num_ticks] { ++num_ticks; });
  const std::vector<TokenId> tokens = {1, 2};

  points.BeforeStep(tokens);
  EXPECT_EQ(num_ticks, 0);
  points.BeforeStep(tokens);
  EXPECT_EQ(num_ticks, 4);
  points.BeforeStep(tokens);
  EXPECT_EQ(num_ticks, 4);
}

TEST(FailPointsDeathTest, StepsCrashWhereTheyAreTold) {
  const std::vector<TokenId> tokens = {1, 2};
  const auto run = [&tokens](const FailPointList& list) {
    FailPoints points(list, [] {});
    for (int step = 0; step < 2; ++step) {
      points.BeforeStep(tokens);
      uint64_t digest = 7;
      points.AfterStep(&digest);
    }
  };

  EXPECT_DEATH(run({.crash_before_step = 2}), "crashes");
  EXPECT_DEATH(run({.crash_after_step = 2}), "crashes");
  EXPECT_DEATH(run({.crash_on_token = 2}), "crashes");
  run({.crash_on_token = 3, .crash_before_step = 3, .crash_after_step = 3});
}

TEST(FailPointsTest, WrongDigestsAreWrongInEveryStep) {
  for (const bool are_wrong : {false, true}) {
    FailPoints points({.has_wrong_digests = are_wrong}, [] {});
    for (int step = 0; step < 3; ++step) {
      uint64_t digest = 7;
      points.BeforeStep({});
      points.AfterStep(&digest);
      EXPECT_EQ(digest != 7, are_wrong) << step;
    }
  }
}

}  // namespace
}  // namespace quire
