// A metric pair exports one number under our name and under a foreign name that other tools expect.
//
// Thread safety: a HistogramPair may be used from any thread; a CounterPair is for one thread.
#ifndef QUIRE_SCHEDULER_METRICS_METRIC_PAIR_H_
#define QUIRE_SCHEDULER_METRICS_METRIC_PAIR_H_

#include <cstdint>
#include <vector>

#include "common/base/clock.h"
#include "common/metrics/registry.h"

namespace quire {

// Two counters that follow one growing number. `last` is the number's value at the last Set.
struct CounterPair {
  prometheus::Counter* native = nullptr;
  prometheus::Counter* foreign = nullptr;  // null: no foreign name
  int64_t last = 0;

  void Set(int64_t value) {
    if (value == last) {
      return;
    }
    const auto increase = static_cast<double>(value - last);
    last = value;
    native->Increment(increase);
    if (foreign != nullptr) {
      foreign->Increment(increase);
    }
  }
};

struct HistogramPair {
  prometheus::Histogram* native = nullptr;
  prometheus::Histogram* foreign = nullptr;  // null: no foreign name

  void Observe(double value) const {
    native->Observe(value);
    if (foreign != nullptr) {
      foreign->Observe(value);
    }
  }
  // counts: observations in each bucket. sum: sum of all observed values.
  void ObserveMultiple(const std::vector<double>& counts, double sum) const {
    native->ObserveMultiple(counts, sum);
    if (foreign != nullptr) {
      foreign->ObserveMultiple(counts, sum);
    }
  }
  void ObserveNanos(int64_t duration_ns) const {
    Observe(static_cast<double>(duration_ns) / static_cast<double>(kNanosPerSecond));
  }
};

// Adds the labels that every metric with a foreign name has: the model, and engine 0, the only
// engine of a process.
inline MetricLabels ForeignLabels(const std::string& model_name, MetricLabels labels = {}) {
  labels.emplace("model_name", model_name);
  labels.emplace("engine", "0");
  return labels;
}

}  // namespace quire

#endif  // QUIRE_SCHEDULER_METRICS_METRIC_PAIR_H_
