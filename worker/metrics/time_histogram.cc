#include "worker/metrics/time_histogram.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "common/base/clock.h"
#include "common/metrics/registry.h"

namespace quire {

TimeHistogram::TimeHistogram() : counts_(StepBuckets().size() + 1) {
  for (const double seconds : StepBuckets()) {
    bounds_ns_.push_back(std::llround(seconds * static_cast<double>(kNanosPerSecond)));
  }
}

void TimeHistogram::Observe(int64_t nanos) {
  // A bucket includes its upper bound.
  const auto bound = std::lower_bound(bounds_ns_.begin(), bounds_ns_.end(), nanos);
  const auto bucket = static_cast<size_t>(bound - bounds_ns_.begin());
  sum_ns_.fetch_add(nanos, std::memory_order_relaxed);
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
}

prometheus::ClientMetric::Histogram TimeHistogram::Read() const {
  prometheus::ClientMetric::Histogram histogram;
  for (size_t i = 0; i < counts_.size(); ++i) {
    histogram.sample_count += static_cast<uint64_t>(counts_[i].load(std::memory_order_relaxed));
    histogram.bucket.push_back({.cumulative_count = histogram.sample_count,
                                .upper_bound = i < bounds_ns_.size()
                                                   ? StepBuckets()[i]
                                                   : std::numeric_limits<double>::infinity()});
  }
  histogram.sample_sum = static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) /
                         static_cast<double>(kNanosPerSecond);
  return histogram;
}

}  // namespace quire
