// Builds metric families from plain numbers, for classes that implement prometheus::Collectable.
// Each scrape by Prometheus calls Collect of these classes.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_COMMON_METRICS_METRIC_FAMILY_H_
#define QUIRE_COMMON_METRICS_METRIC_FAMILY_H_

#include <vector>

#include "prometheus/client_metric.h"
#include "prometheus/metric_family.h"

#include "common/metrics/metric_names.h"
#include "common/metrics/registry.h"

namespace quire {

struct LabeledValue {
  MetricLabels labels;
  double value = 0;
};

struct LabeledHistogram {
  MetricLabels labels;
  prometheus::ClientMetric::Histogram histogram;
};

prometheus::MetricFamily CounterFamily(const MetricInfo& info,
                                       const std::vector<LabeledValue>& values);
prometheus::MetricFamily GaugeFamily(const MetricInfo& info,
                                     const std::vector<LabeledValue>& values);
prometheus::MetricFamily HistogramFamily(const MetricInfo& info,
                                         std::vector<LabeledHistogram> histograms);

// Return a family with one value, without labels.
prometheus::MetricFamily CounterFamily(const MetricInfo& info, double value);
prometheus::MetricFamily GaugeFamily(const MetricInfo& info, double value);

}  // namespace quire

#endif  // QUIRE_COMMON_METRICS_METRIC_FAMILY_H_
