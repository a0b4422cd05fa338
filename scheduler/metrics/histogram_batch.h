// HistogramBatch gathers durations that one thread observes, and Flush adds all of them to a pair
// of histograms at once. Single observations would be costly, because the metrics library takes a
// lock for each, and a step observes one duration per token.
//
// Thread safety: one thread.
// Cost:          if a duration equals the previous one, as most in a step do, ObserveNanos only
//                increments a number. Else it searches the bucket bounds. Flush takes two locks.
#ifndef QUIRE_SCHEDULER_METRICS_HISTOGRAM_BATCH_H_
#define QUIRE_SCHEDULER_METRICS_HISTOGRAM_BATCH_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/clock.h"
#include "common/metrics/registry.h"
#include "scheduler/metrics/metric_pair.h"

namespace quire {

class HistogramBatch {
 public:
  // buckets: the bucket bounds of both histograms.
  HistogramBatch(HistogramPair pair, const MetricBuckets& buckets)
      : pair_(pair), counts_(buckets.size() + 1) {
    for (const double seconds : buckets) {
      bounds_ns_.push_back(std::llround(seconds * static_cast<double>(kNanosPerSecond)));
    }
  }

  void ObserveNanos(int64_t nanos) {
    if (nanos != last_ns_) {
      CountLast();
      last_ns_ = nanos;
    }
    ++num_last_;
  }

  void Flush() {
    CountLast();
    if (is_empty_) {
      return;
    }
    pair_.ObserveMultiple(counts_,
                          static_cast<double>(sum_ns_) / static_cast<double>(kNanosPerSecond));
    std::fill(counts_.begin(), counts_.end(), 0.0);
    sum_ns_ = 0;
    is_empty_ = true;
  }

 private:
  void CountLast() {
    if (num_last_ == 0) {
      return;
    }
    // A bucket includes its upper bound.
    const auto bound = std::lower_bound(bounds_ns_.begin(), bounds_ns_.end(), last_ns_);
    counts_[static_cast<size_t>(bound - bounds_ns_.begin())] += static_cast<double>(num_last_);
    sum_ns_ += last_ns_ * num_last_;
    num_last_ = 0;
    is_empty_ = false;
  }

  HistogramPair pair_;
  std::vector<int64_t> bounds_ns_;  // ascending
  std::vector<double> counts_;      // per bucket; the last bucket lies above all bounds
  int64_t sum_ns_ = 0;
  bool is_empty_ = true;
  int64_t last_ns_ = 0;   // last duration
  int64_t num_last_ = 0;  // observations of last_ns_ that counts_ and sum_ns_ do not include yet
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_METRICS_HISTOGRAM_BATCH_H_
