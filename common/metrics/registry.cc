#include "common/metrics/registry.h"

#include "prometheus/text_serializer.h"

namespace quire {
namespace {

std::string TextOf(const prometheus::Registry& registry) {
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

}  // namespace

prometheus::Registry& MetricsRegistry::RegistryFor(const MetricInfo& info) {
  return info.name.find(':') == std::string_view::npos ? native_ : foreign_;
}

prometheus::Counter& MetricsRegistry::Counter(const MetricInfo& info, const MetricLabels& labels) {
  return prometheus::BuildCounter()
      .Name(std::string(info.name))
      .Help(std::string(info.help))
      .Register(RegistryFor(info))
      .Add(labels);
}

prometheus::Gauge& MetricsRegistry::Gauge(const MetricInfo& info, const MetricLabels& labels) {
  return prometheus::BuildGauge()
      .Name(std::string(info.name))
      .Help(std::string(info.help))
      .Register(RegistryFor(info))
      .Add(labels);
}

prometheus::Histogram& MetricsRegistry::Histogram(const MetricInfo& info,
                                                  const MetricBuckets& buckets,
                                                  const MetricLabels& labels) {
  return prometheus::BuildHistogram()
      .Name(std::string(info.name))
      .Help(std::string(info.help))
      .Register(RegistryFor(info))
      .Add(labels, buckets);
}

std::string MetricsRegistry::NativeText() const { return TextOf(native_); }

std::string MetricsRegistry::AllText() const { return TextOf(native_) + TextOf(foreign_); }

const MetricBuckets& FirstTokenBuckets() {
  static const MetricBuckets buckets = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                        0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                        20,    40,    80,   160,  640,  2560};
  return buckets;
}

const MetricBuckets& InterTokenBuckets() {
  static const MetricBuckets buckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                        0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,     2.5,
                                        5,     7.5,    10,    20,   40,    80};
  return buckets;
}

const MetricBuckets& RequestBuckets() {
  static const MetricBuckets buckets = {0.05, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,    10,  15,
                                        20,   30,  40,  50,  60,  120, 240, 480, 960, 1920, 7680};
  return buckets;
}

const MetricBuckets& StepBuckets() {
  static const MetricBuckets buckets = {0.00001,
                                        0.000025,
                                        0.00005,
                                        0.0001,
                                        0.00025,
                                        0.0005,
                                        0.001,
                                        0.0025,
                                        0.005,
                                        0.01,
                                        0.025,
                                        0.05,
                                        0.1,
                                        0.25,
                                        0.5,
                                        1,
                                        2.5,
                                        5,
                                        10};
  return buckets;
}

MetricBuckets CountBuckets(int limit) {
  MetricBuckets buckets;
  for (int bound = 1; bound <= limit; bound *= 2) {
    buckets.push_back(bound);
  }
  return buckets;
}

}  // namespace quire
