#include "worker/metrics/time_histogram.h"

#include <cmath>
#include <thread>

#include "prometheus/histogram.h"
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/metrics/registry.h"

namespace quire {
namespace {

// The library's own histogram of the same observations, in the same buckets.
class BesideTheLibrary : public testing::Test {
 protected:
  void Observe(int64_t nanos) {
    ours_.Observe(nanos);
    theirs_.Observe(static_cast<double>(nanos) / static_cast<double>(kNanosPerSecond));
  }

  void ExpectTheSame() const {
    const auto ours = ours_.Read();
    const auto theirs = theirs_.Collect().histogram;
    EXPECT_EQ(ours.sample_count, theirs.sample_count);
    EXPECT_NEAR(ours.sample_sum, theirs.sample_sum, 1e-9);
    ASSERT_EQ(ours.bucket.size(), theirs.bucket.size());
    for (size_t i = 0; i < ours.bucket.size(); ++i) {
      EXPECT_EQ(ours.bucket[i].upper_bound, theirs.bucket[i].upper_bound);
      EXPECT_EQ(ours.bucket[i].cumulative_count, theirs.bucket[i].cumulative_count) << i;
    }
  }

  TimeHistogram ours_;
  prometheus::Histogram theirs_{StepBuckets()};
};

TEST_F(BesideTheLibrary, NothingWasObserved) { ExpectTheSame(); }

TEST_F(BesideTheLibrary, AtEachBoundAndBesideIt) {
  for (const double bound : StepBuckets()) {
    const int64_t nanos = std::llround(bound * 1e9);
    for (const int64_t near : {nanos - 1, nanos, nanos + 1}) {
      Observe(near);
    }
  }
  Observe(0);
  Observe(1000 * kNanosPerSecond);
  ExpectTheSame();
}

TEST(TimeHistogramTest, WhoReadsMeanwhileSeesBucketsThatGrow) {
  constexpr uint64_t kNumObservations = 20'000;
  TimeHistogram histogram;
  std::thread writer([&histogram] {
    for (uint64_t i = 0; i < kNumObservations; ++i) {
      histogram.Observe(static_cast<int64_t>(i) * 1'000);
    }
  });
  uint64_t last = 0;
  while (last < kNumObservations) {
    const auto read = histogram.Read();
    EXPECT_GE(read.sample_count, last);
    EXPECT_EQ(read.bucket.back().cumulative_count, read.sample_count);
    for (size_t i = 1; i < read.bucket.size(); ++i) {
      EXPECT_GE(read.bucket[i].cumulative_count, read.bucket[i - 1].cumulative_count);
    }
    last = read.sample_count;
  }
  writer.join();
  EXPECT_NEAR(
      histogram.Read().sample_sum, 1e-6 * kNumObservations * (kNumObservations - 1) / 2, 1e-3);
}

}  // namespace
}  // namespace quire
