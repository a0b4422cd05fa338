#include "scheduler/metrics/scheduler_metrics.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::Not;

class SchedulerMetricsTest : public testing::Test {
 protected:
  MetricsRegistry registry_;
  SchedulerMetrics metrics_{&registry_, "1", "tiny", /*max_model_len=*/100, true};
};

TEST_F(SchedulerMetricsTest, WhatAGroupIsTakesThePlaceOfWhatTheOneBeforeWas) {
  metrics_.OnGroupReady({.num_blocks = 150, .max_model_len = 100}, "float32", 1);
  metrics_.OnGroupReady({.num_blocks = 150, .max_model_len = 100}, "float32", 1);
  metrics_.OnGroupReady({.num_blocks = 100, .max_model_len = 80}, "float32", 1);

  const std::string text = registry_.AllText();
  EXPECT_THAT(text, HasSubstr("num_gpu_blocks=\"99\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("num_gpu_blocks=\"149\"")));
  EXPECT_THAT(text, HasSubstr("max_model_len=\"80\",model_name=\"tiny\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("max_model_len=\"100\"")));
}

// As in vLLM: its dashboards divide the found prompt tokens by all prompt tokens.
TEST_F(SchedulerMetricsTest, ForeignPromptTokensAreComputedOrFound) {
  metrics_.OnStats({.num_prompt_tokens_computed = 304, .num_prefix_hit_tokens = 1296}, {});

  const std::string text = registry_.AllText();
  const std::string labels = R"({engine="0",model_name="tiny"})";
  EXPECT_THAT(text, HasSubstr("\nvllm:prompt_tokens_total" + labels + " 1600\n"));
  EXPECT_THAT(text, HasSubstr("\nvllm:prompt_tokens_cached_total" + labels + " 1296\n"));
  EXPECT_THAT(text, HasSubstr("\nquire_tokens_total{kind=\"prompt\"} 304\n"));
}

TEST_F(SchedulerMetricsTest, TurnsOfTheLoopAreCountedByTheirLength) {
  metrics_.OnTurn(100 * kNanosPerMilli);
  metrics_.OnTurn(101 * kNanosPerMilli);

  const std::string text = registry_.NativeText();
  EXPECT_THAT(text, HasSubstr("quire_loop_turn_seconds_bucket{le=\"0.1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("quire_loop_turn_seconds_count 2\n"));
}

}  // namespace
}  // namespace quire
