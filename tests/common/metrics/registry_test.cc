#include "common/metrics/registry.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(MetricsRegistryTest, ForeignNamesAreInTheWholeTextOnly) {
  MetricsRegistry registry;

  registry.Gauge(metric::kRequests, {{"state", "running"}}).Set(3);
  registry.Gauge(metric::kVllmRunning, {{"engine", "0"}}).Set(3);

  EXPECT_THAT(registry.NativeText(), HasSubstr("quire_requests{state=\"running\"} 3\n"));
  EXPECT_THAT(registry.NativeText(), Not(HasSubstr("vllm:")));
  EXPECT_THAT(registry.AllText(), HasSubstr("quire_requests{state=\"running\"} 3\n"));
  EXPECT_THAT(registry.AllText(), HasSubstr("vllm:num_requests_running{engine=\"0\"} 3\n"));
}

TEST(MetricsRegistryTest, TheSameNameAndLabelsAreTheSameMetric) {
  MetricsRegistry registry;

  registry.Counter(metric::kRequestsTotal, {{"outcome", "stop"}}).Increment();
  registry.Counter(metric::kRequestsTotal, {{"outcome", "stop"}}).Increment();

  EXPECT_THAT(registry.NativeText(), HasSubstr("quire_requests_total{outcome=\"stop\"} 2\n"));
}

TEST(MetricsRegistryTest, HistogramsCountIntoTheirBuckets) {
  MetricsRegistry registry;

  registry.Histogram(metric::kStepTokens, CountBuckets(4)).Observe(3);

  const std::string text = registry.NativeText();
  EXPECT_THAT(text, HasSubstr("quire_step_batch_tokens_bucket{le=\"2\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("quire_step_batch_tokens_bucket{le=\"4\"} 1\n"));
}

TEST(MetricsRegistryTest, BucketsAscend) {
  for (const MetricBuckets& buckets :
       {FirstTokenBuckets(), InterTokenBuckets(), RequestBuckets(), StepBuckets()}) {
    for (size_t i = 1; i < buckets.size(); ++i) {
      EXPECT_LT(buckets[i - 1], buckets[i]);
    }
  }
}

}  // namespace
}  // namespace quire
