// MetricsRegistry makes metrics from the table in metric_names.h. A name that is not ours (it has a
// colon) goes to the registry of foreign names, so that ours can be read and checked alone.
//
// Thread safety: make metrics from one thread; use them, and read the text, from any.
// Cost:          a counter or gauge is one atomic operation; a histogram takes a short lock.
#ifndef QUIRE_COMMON_METRICS_REGISTRY_H_
#define QUIRE_COMMON_METRICS_REGISTRY_H_

#include <map>
#include <string>
#include <vector>

#include "prometheus/counter.h"
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

  // In the text format of Prometheus.
  std::string NativeText() const;
  std::string AllText() const;

 private:
  prometheus::Registry& RegistryFor(const MetricInfo& info);

  prometheus::Registry native_;
  prometheus::Registry foreign_;
};

// Buckets, in seconds, of times to a first token, between tokens, of whole requests, and of steps.
const MetricBuckets& FirstTokenBuckets();
const MetricBuckets& InterTokenBuckets();
const MetricBuckets& RequestBuckets();
const MetricBuckets& StepBuckets();
// Powers of two from 1 to limit.
MetricBuckets CountBuckets(int limit);

}  // namespace quire

#endif  // QUIRE_COMMON_METRICS_REGISTRY_H_
