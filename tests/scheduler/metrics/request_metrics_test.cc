#include "scheduler/metrics/request_metrics.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/clock.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::Not;

class RequestMetricsTest : public testing::Test {
 protected:
  // Whether the text has this line.
  testing::AssertionResult Has(const std::string& line) const {
    return ("\n" + registry_.AllText()).find("\n" + line + "\n") != std::string::npos
               ? testing::AssertionSuccess()
               : testing::AssertionFailure() << registry_.AllText();
  }

  MetricsRegistry registry_;
  RequestMetrics metrics_{&registry_, "tiny", /*max_model_len=*/100};
};

TEST_F(RequestMetricsTest, PartsOfARequestAreObservedUnderBothNames) {
  metrics_.OnEnd({.outcome = RequestOutcome::kLength,
                  .duration_ns = 10 * kNanosPerSecond,
                  .queue_ns = 2 * kNanosPerSecond,
                  .prefill_ns = 3 * kNanosPerSecond,
                  .decode_ns = 4 * kNanosPerSecond,
                  .longest_new_output = 9});

  for (const char* own : {"quire_queue_seconds_sum 2",
                          "quire_prefill_seconds_sum 3",
                          "quire_decode_seconds_sum 4",
                          "quire_inference_seconds_sum 7",
                          "quire_time_per_output_token_seconds_sum 0.5",
                          "quire_e2e_seconds_sum 10"}) {
    EXPECT_TRUE(Has(own));
  }
  const std::string labels = R"({engine="0",model_name="tiny"})";
  EXPECT_TRUE(Has("vllm:request_queue_time_seconds_sum" + labels + " 2"));
  EXPECT_TRUE(Has("vllm:request_prefill_time_seconds_sum" + labels + " 3"));
  EXPECT_TRUE(Has("vllm:request_decode_time_seconds_sum" + labels + " 4"));
  EXPECT_TRUE(Has("vllm:request_inference_time_seconds_sum" + labels + " 7"));
  EXPECT_TRUE(Has("vllm:request_time_per_output_token_seconds_sum" + labels + " 0.5"));
}

TEST_F(RequestMetricsTest, TimesBetweenTokensAreSeenTogetherAndEachInItsBucket) {
  for (int i = 0; i < 3; ++i) {
    metrics_.OnInterToken(10 * kNanosPerMilli);  // as long as a bound
  }
  metrics_.OnInterToken(11 * kNanosPerMilli);
  metrics_.OnInterToken(1000 * kNanosPerSecond);  // above all bounds
  EXPECT_TRUE(Has("quire_itl_seconds_count 0"));

  metrics_.Flush();
  metrics_.Flush();  // nothing more

  EXPECT_TRUE(Has("quire_itl_seconds_count 5"));
  EXPECT_TRUE(Has("quire_itl_seconds_bucket{le=\"0.01\"} 3"));
  EXPECT_TRUE(Has("quire_itl_seconds_bucket{le=\"0.025\"} 4"));
  EXPECT_TRUE(Has("quire_itl_seconds_bucket{le=\"+Inf\"} 5"));
  EXPECT_TRUE(Has(R"(vllm:inter_token_latency_seconds_count{engine="0",model_name="tiny"} 5)"));
}

TEST_F(RequestMetricsTest, WhoEndedInTheQueueHasNoOtherParts) {
  metrics_.OnEnd({.outcome = RequestOutcome::kExpired, .duration_ns = kNanosPerSecond});

  EXPECT_TRUE(Has("quire_e2e_seconds_count 1"));
  EXPECT_TRUE(Has("quire_queue_seconds_count 0"));
  EXPECT_TRUE(Has("quire_prefill_seconds_count 0"));
  EXPECT_TRUE(Has("quire_decode_seconds_count 0"));
}

TEST_F(RequestMetricsTest, ARequestOfOneTokenHasNoTimeBetweenTokens) {
  metrics_.OnEnd({.outcome = RequestOutcome::kLength,
                  .queue_ns = 1,
                  .prefill_ns = 1,
                  .decode_ns = 0,
                  .longest_new_output = 1});

  EXPECT_TRUE(Has("quire_decode_seconds_count 1"));
  EXPECT_TRUE(Has("quire_time_per_output_token_seconds_count 0"));
}

TEST_F(RequestMetricsTest, TokensAreCountedBySequenceAndByRequest) {
  metrics_.OnEnd({.outcome = RequestOutcome::kStop,
                  .num_prompt_tokens = 7,
                  .max_tokens = 30,
                  .num_output_tokens = {4, 20}});

  EXPECT_TRUE(Has("quire_request_prompt_tokens_sum 7"));
  EXPECT_TRUE(Has("quire_request_max_tokens_sum 30"));
  EXPECT_TRUE(Has("quire_request_output_tokens_sum 24"));
  EXPECT_TRUE(Has("quire_request_output_tokens_count 2"));
  EXPECT_TRUE(Has("quire_request_longest_output_tokens_sum 20"));
  EXPECT_TRUE(Has("quire_request_longest_output_tokens_count 1"));
  EXPECT_TRUE(Has("quire_request_sequences_sum 2"));
  EXPECT_TRUE(
      Has(R"(vllm:request_generation_tokens_bucket{engine="0",model_name="tiny",le="5"} 1)"));
  // Up to the length of the model, and no further.
  EXPECT_THAT(registry_.AllText(), HasSubstr(R"(quire_request_prompt_tokens_bucket{le="100"})"));
  EXPECT_THAT(registry_.AllText(),
              Not(HasSubstr(R"(quire_request_prompt_tokens_bucket{le="200"})")));
}

TEST_F(RequestMetricsTest, RefusalsAreCountedByReasonAndHaveNoTimes) {
  metrics_.OnEnd({.refusal = "QUEUE_FULL", .duration_ns = kNanosPerSecond});
  metrics_.OnEnd({.refusal = "QUEUE_FULL"});
  metrics_.OnEnd({.refusal = "DRAINING"});
  metrics_.OnEnd({.refusal = "TEMPERATURE_RANGE"});
  metrics_.OnEnd({.refusal = ""});

  EXPECT_TRUE(Has(R"(quire_admission_rejects_total{reason="queue_full"} 2)"));
  EXPECT_TRUE(Has(R"(quire_admission_rejects_total{reason="draining"} 1)"));
  EXPECT_TRUE(Has(R"(quire_admission_rejects_total{reason="invalid"} 2)"));
  EXPECT_TRUE(Has(R"(quire_admission_rejects_total{reason="tenant_limit"} 0)"));
  EXPECT_TRUE(Has(R"(quire_requests_total{outcome="rejected"} 5)"));
  EXPECT_TRUE(Has("quire_e2e_seconds_count 0"));
}

}  // namespace
}  // namespace quire
