// MetricsRegistry makes metrics from the table in metric_names.h. A name that is not ours (it has a
// colon) goes to the registry of foreign names, so that ours can be read and checked alone.
//
// Thread safety: any thread, but for Add.
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
  // The same name and labels give the same metric.
  prometheus::Counter& Counter(const MetricInfo& info, const MetricLabels& labels = {});
  prometheus::Gauge& Gauge(const MetricInfo& info, const MetricLabels& labels = {});
  prometheus::Histogram& Histogram(const MetricInfo& info,
                                   const MetricBuckets& buckets,
                                   const MetricLabels& labels = {});

  // It is read no more; made again, it begins at 0. REQUIRES: made with this info, and here still.
  void Remove(const MetricInfo& info, prometheus::Gauge* gauge);

  // Metrics that are read when the text is, under our names. Not while a text is read.
  void Add(std::shared_ptr<prometheus::Collectable> collectable);

  // In the text format of Prometheus.
  std::string NativeText() const;
  std::string AllText() const;

 private:
  prometheus::Registry& RegistryFor(const MetricInfo& info);
  prometheus::Family<prometheus::Gauge>& GaugesOf(const MetricInfo& info);

  prometheus::Registry native_;
  prometheus::Registry foreign_;
  std::vector<std::shared_ptr<prometheus::Collectable>> collectables_;
};

// Buckets, in seconds, of times to a first token, between tokens, of whole requests, and of steps.
const MetricBuckets& FirstTokenBuckets();
const MetricBuckets& InterTokenBuckets();
const MetricBuckets& RequestBuckets();
const MetricBuckets& StepBuckets();
// Powers of two from 1 to limit.
MetricBuckets CountBuckets(int limit);
// 1, 2, 5, 10, 20, 50, ... up to limit.
MetricBuckets OneTwoFiveBuckets(int limit);
// Of tokens in a step, and of sequences of a request, as vLLM has them.
const MetricBuckets& IterationTokenBuckets();
const MetricBuckets& SequenceCountBuckets();

}  // namespace quire

#endif  // QUIRE_COMMON_METRICS_REGISTRY_H_
