// TimeHistogram counts durations in the buckets of StepBuckets(). Observe takes no lock, so that
// the executor never waits; the histogram of prometheus-cpp would take a lock.
//
// Thread safety: Observe from one thread, Read from any.
// Cost:          Observe: a search in 19 bounds and two atomic additions.
#ifndef QUIRE_WORKER_METRICS_TIME_HISTOGRAM_H_
#define QUIRE_WORKER_METRICS_TIME_HISTOGRAM_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "prometheus/client_metric.h"

namespace quire {

class TimeHistogram {
 public:
  TimeHistogram();

  void Observe(int64_t nanos);

  // Returns cumulative buckets; the last bucket equals the count. A Read during an Observe can
  // include the observed duration in the sum and not yet in the count, or the reverse.
  prometheus::ClientMetric::Histogram Read() const;

 private:
  std::vector<int64_t> bounds_ns_;            // ascending
  std::vector<std::atomic<int64_t>> counts_;  // by bound; the last element counts longer durations
  std::atomic<int64_t> sum_ns_{0};
};

}  // namespace quire

#endif  // QUIRE_WORKER_METRICS_TIME_HISTOGRAM_H_
