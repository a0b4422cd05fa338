#include "common/metrics/metric_family.h"

#include <string>
#include <utility>

#include "prometheus/metric_type.h"

namespace quire {
namespace {

prometheus::MetricFamily EmptyFamily(const MetricInfo& info, prometheus::MetricType type) {
  return {std::string(info.name), std::string(info.help), type, {}};
}

prometheus::ClientMetric& Add(const MetricLabels& labels, prometheus::MetricFamily* family) {
  prometheus::ClientMetric& metric = family->metric.emplace_back();
  for (const auto& [name, value] : labels) {
    metric.label.push_back({name, value});
  }
  return metric;
}

}  // namespace

prometheus::MetricFamily CounterFamily(const MetricInfo& info,
                                       const std::vector<LabeledValue>& values) {
  prometheus::MetricFamily family = EmptyFamily(info, prometheus::MetricType::Counter);
  for (const auto& [labels, value] : values) {
    Add(labels, &family).counter.value = value;
  }
  return family;
}

prometheus::MetricFamily GaugeFamily(const MetricInfo& info,
                                     const std::vector<LabeledValue>& values) {
  prometheus::MetricFamily family = EmptyFamily(info, prometheus::MetricType::Gauge);
  for (const auto& [labels, value] : values) {
    Add(labels, &family).gauge.value = value;
  }
  return family;
}

prometheus::MetricFamily HistogramFamily(const MetricInfo& info,
                                         std::vector<LabeledHistogram> histograms) {
  prometheus::MetricFamily family = EmptyFamily(info, prometheus::MetricType::Histogram);
  for (LabeledHistogram& each : histograms) {
    Add(each.labels, &family).histogram = std::move(each.histogram);
  }
  return family;
}

prometheus::MetricFamily CounterFamily(const MetricInfo& info, double value) {
  return CounterFamily(info, {{.labels = {}, .value = value}});
}

prometheus::MetricFamily GaugeFamily(const MetricInfo& info, double value) {
  return GaugeFamily(info, {{.labels = {}, .value = value}});
}

}  // namespace quire
