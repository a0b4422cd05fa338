// MetricsRegistry makes metrics from the table in metric_names.h. Metrics with foreign names
// (vLLM's, which have a colon) are in a separate registry, so that Quire's own metrics can be read
// and checked alone.
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
using MetricBuckets = std::vector<double>;  // upper bounds of a histogram's buckets, ascending

class MetricsRegistry {
 public:
  // Each function returns a metric. The same name and labels give the same object.
  prometheus::Counter& Counter(const MetricInfo& info, const MetricLabels& labels = {});
  prometheus::Gauge& Gauge(const MetricInfo& info, const MetricLabels& labels = {});
  prometheus::Histogram& Histogram(const MetricInfo& info,
                                   const MetricBuckets& buckets,
                                   const MetricLabels& labels = {});

  // Deletes a gauge. REQUIRES: the gauge was made with this info and still exists.
  void Remove(const MetricInfo& info, prometheus::Gauge* gauge);

  // Adds metrics with Quire's own names. Each scrape calls collectable->Collect().
  // REQUIRES: no scrape runs at the same time.
  void Add(std::shared_ptr<prometheus::Collectable> collectable);

  // Returns the metrics with Quire's own names, in Prometheus' text format.
  std::string NativeText() const;
  // Returns all metrics, in Prometheus' text format.
  std::string AllText() const;

 private:
  prometheus::Registry& RegistryFor(const MetricInfo& info);
  prometheus::Family<prometheus::Gauge>& GaugesOf(const MetricInfo& info);

  prometheus::Registry native_;
  prometheus::Registry foreign_;
  std::vector<std::shared_ptr<prometheus::Collectable>> collectables_;
};

// Returns buckets in seconds for the time to the first token.
const MetricBuckets& FirstTokenBuckets();
// Returns buckets in seconds for the time between two tokens.
const MetricBuckets& InterTokenBuckets();
// Returns buckets in seconds for the duration of a request.
const MetricBuckets& RequestBuckets();
// Returns buckets in seconds for the duration of a step.
const MetricBuckets& StepBuckets();
// Returns powers of two from 1 to limit.
MetricBuckets CountBuckets(int limit);
// Returns 1, 2, 5, 10, 20, 50, ... up to limit.
MetricBuckets OneTwoFiveBuckets(int limit);
// Returns vLLM's buckets for the number of tokens in a step.
const MetricBuckets& IterationTokenBuckets();
// Returns vLLM's buckets for the number of sequences in a request.
const MetricBuckets& SequenceCountBuckets();

}  // namespace quire

#endif  // QUIRE_COMMON_METRICS_REGISTRY_H_
