#include "common/metrics/registry.h"

#include <cstdint>
#include <utility>

#include "prometheus/text_serializer.h"

namespace quire {
namespace {

std::string TextOf(const prometheus::Collectable& metrics) {
  return prometheus::TextSerializer().Serialize(metrics.Collect());
}

}  // namespace

prometheus::Registry& MetricsRegistry::RegistryFor(const MetricInfo& info) {
  return info.name.find(':') == std::string_view::npos ? native_ : foreign_;
}

prometheus::Family<prometheus::Gauge>& MetricsRegistry::GaugesOf(const MetricInfo& info) {
  return prometheus::BuildGauge()
      .Name(std::string(info.name))
      .Help(std::string(info.help))
      .Register(RegistryFor(info));
}

prometheus::Counter& MetricsRegistry::Counter(const MetricInfo& info, const MetricLabels& labels) {
  return prometheus::BuildCounter()
      .Name(std::string(info.name))
      .Help(std::string(info.help))
      .Register(RegistryFor(info))
      .Add(labels);
}

prometheus::Gauge& MetricsRegistry::Gauge(const MetricInfo& info, const MetricLabels& labels) {
  return GaugesOf(info).Add(labels);
}

void MetricsRegistry::Remove(const MetricInfo& info, prometheus::Gauge* gauge) {
  GaugesOf(info).Remove(gauge);
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

void MetricsRegistry::Add(std::shared_ptr<prometheus::Collectable> collectable) {
  collectables_.push_back(std::move(collectable));
}

std::string MetricsRegistry::NativeText() const {
  std::string text = TextOf(native_);
  for (const auto& collectable : collectables_) {
    text += TextOf(*collectable);
  }
  return text;
}

std::string MetricsRegistry::AllText() const { return NativeText() + TextOf(foreign_); }

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

MetricBuckets OneTwoFiveBuckets(int limit) {
  MetricBuckets buckets;
  for (int64_t power = 1; power <= limit; power *= 10) {
    for (int64_t bound : {power, 2 * power, 5 * power}) {
      if (bound <= limit) {
        buckets.push_back(static_cast<double>(bound));
      }
    }
  }
  return buckets;
}

const MetricBuckets& IterationTokenBuckets() {
  static const MetricBuckets buckets = {
      1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
  return buckets;
}

const MetricBuckets& SequenceCountBuckets() {
  static const MetricBuckets buckets = {1, 2, 5, 10, 20};
  return buckets;
}

}  // namespace quire
