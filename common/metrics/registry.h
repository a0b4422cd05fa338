// MetricsRegistry makes metrics from the table in metric_names.h. Metrics with foreign names, which
// have a colon, are in a separate registry, so that ours can be read and checked alone.
//
// Thread safety: any thread, except Add.
// Cost:          a counter or gauge is one atomic operation; a histogram takes a short lock.
#ifndef QUIRE_COMMON_METRICS_REGISTRY_H_
#define QUIRE_COMMON_METRICS_REGISTRY_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

#include "common/metrics/metric_names.h"

namespace quire {

using MetricLabels = std::map<std::string, std::string>;
using MetricBuckets = std::vector<double>;  // upper bounds, ascending

class MetricsRegistry {
 public:
  // Returns the same metric for the same name and labels.
  prometheus::Counter& Counter(const MetricInfo& info, const MetricLabels& labels = {});
  prometheus::Gauge& Gauge(const MetricInfo& info, const MetricLabels& labels = {});
  prometheus::Histogram& Histogram(const MetricInfo& info,
                                   const MetricBuckets& buckets,
                                   const MetricLabels& labels = {});

  // Deletes a gauge. REQUIRES: the gauge was made with this info and is not removed.
  void Remove(const MetricInfo& info, prometheus::Gauge* gauge);

  // Adds metrics under our names, which are collected at each scrape. Not called during a scrape.
  void Add(std::shared_ptr<prometheus::Collectable> collectable);

  // Return our metrics, or all metrics, in Prometheus' text format.
  std::string NativeText() const;
  std::string AllText() const;

 private:
  prometheus::Registry& RegistryFor(const MetricInfo& info);
  prometheus::Family<prometheus::Gauge>& GaugesOf(const MetricInfo& info);

  prometheus::Registry native_;
  prometheus::Registry foreign_;
  std::vector<std::shared_ptr<prometheus::Collectable>> collectables_;
};

// Buckets in seconds, for the time to the first token, between tokens, of a request, of a step.
const MetricBuckets& FirstTokenBuckets();
const MetricBuckets& InterTokenBuckets();
const MetricBuckets& RequestBuckets();
const MetricBuckets& StepBuckets();
// Returns powers of two from 1 to limit.
MetricBuckets CountBuckets(int limit);
// Returns 1, 2, 5, 10, 20, 50, ... up to limit.
MetricBuckets OneTwoFiveBuckets(int limit);
// vLLM's buckets for tokens in a step and for sequences of a request.
const MetricBuckets& IterationTokenBuckets();
const MetricBuckets& SequenceCountBuckets();

}  // namespace quire

#endif  // QUIRE_COMMON_METRICS_REGISTRY_H_
