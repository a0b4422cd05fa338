#include "worker/metrics/worker_metrics.h"

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "prometheus/metric_type.h"
#include <gtest/gtest.h>

#include "common/base/clock.h"

namespace quire {
namespace {

using Values = std::map<std::string, double>;

constexpr EpochObservation kEpoch = {
    .has_begun = true,
    .scheduler_incarnation = 1'795'461'084'439'445'872U,  // more digits than a double has
    .group_epoch = 7,
    .pools = {.block_bytes = 1000, .num_blocks = 21, .num_host_blocks = 5},
    .holdings = {}};

constexpr ExecutedStep kStep = {
    .build_ns = 1 * kNanosPerMilli,
    .forward_ns = 20 * kNanosPerMilli,
    .sample_ns = 4 * kNanosPerMilli,
    .swap_ns = kNanosPerMilli / 2,
    .forward_collective_ns = 8 * kNanosPerMilli,
    .sample_collective_ns = 2 * kNanosPerMilli,
    .num_tokens = 30,
    .num_sampled = 3,
    .num_swapped_out = 4,
    .num_swapped_in = 2,
    .num_failed_swap_ins = 1,
    .holdings = {.num_sequences = 6, .num_blocks = 12, .num_host_blocks = 4}};

// The values by the metric's name and the labels' values; for histograms the sum and the count.
Values Read(const WorkerMetrics& metrics) {
  Values values;
  for (const prometheus::MetricFamily& family : metrics.Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      std::string name = family.name;
      for (const auto& label : metric.label) {
        absl::StrAppend(&name, " ", label.value);
      }
      if (family.type == prometheus::MetricType::Histogram) {
        values[name + " sum"] = metric.histogram.sample_sum;
        values[name + " count"] = static_cast<double>(metric.histogram.sample_count);
      } else {
        values[name] = family.type == prometheus::MetricType::Counter ? metric.counter.value
                                                                      : metric.gauge.value;
      }
    }
  }
  return values;
}

TEST(WorkerMetricsTest, BeforeTheFirstEpochThereAreNoPoolsAndNoEpochIsNamed) {
  const WorkerMetrics metrics;
  Values values = Read(metrics);
  EXPECT_EQ(values["quire_worker_epochs_total"], 0);
  EXPECT_EQ(values["quire_worker_kv_blocks_capacity device"], 0);
  EXPECT_EQ(values["quire_worker_memory_bytes kv"], 0);
  for (const auto& [name, value] : values) {
    EXPECT_FALSE(name.starts_with("quire_worker_group_epoch")) << name;
    EXPECT_FALSE(name.starts_with("quire_worker_scrub")) << name;
  }
}

TEST(WorkerMetricsTest, OfWindowsNothingIsToldWhereThereAreNone) {
  WorkerMetrics metrics;
  metrics.OnEpoch(kEpoch);
  metrics.OnStep(kStep);
  for (const auto& [name, value] : Read(metrics)) {
    EXPECT_FALSE(name.starts_with("quire_worker_window")) << name;
  }
}

TEST(WorkerMetricsTest, PlacesOfWindowsAreAddedUpByHowTheyCameToShowABlock) {
  WorkerMetrics metrics;
  EpochObservation epoch = kEpoch;
  epoch.pools.padding_bytes = 24;
  epoch.pools.max_places = 30;
  metrics.OnEpoch(epoch);
  ExecutedStep step = kStep;
  step.map_ns = 2 * kNanosPerMilli;
  step.windows = {.num_found = 5, .num_mapped = 3, .num_mapped_ahead = 7, .num_taken_down = 2};
  step.holdings.num_places = 11;
  metrics.OnStep(step);
  step.windows.was_refused = true;
  metrics.OnStep(step);
  Values values = Read(metrics);
  EXPECT_EQ(values["quire_worker_window_places_total found"], 10);
  EXPECT_EQ(values["quire_worker_window_places_total mapped"], 6);
  EXPECT_EQ(values["quire_worker_window_places_total mapped_ahead"], 14);
  EXPECT_EQ(values["quire_worker_window_places_total taken_down"], 4);
  EXPECT_EQ(values["quire_worker_window_refusals_total"], 1);
  EXPECT_EQ(values["quire_worker_window_places"], 11);
  EXPECT_EQ(values["quire_worker_window_places_limit"], 30);
  EXPECT_EQ(values["quire_worker_memory_bytes padding"], 24 * (21 + 5));
  EXPECT_DOUBLE_EQ(values["quire_worker_step_duration_seconds map sum"], 0.004);
}

TEST(WorkerMetricsTest, AnEpochSaysWhosePoolsThereAre) {
  WorkerMetrics metrics;
  metrics.OnEpoch(kEpoch);
  Values values = Read(metrics);
  EXPECT_EQ(values["quire_worker_group_epoch 1795461084439445872"], 7);
  EXPECT_EQ(values["quire_worker_epochs_total"], 1);
  EXPECT_EQ(values["quire_worker_kv_blocks_capacity device"], 20);  // without the null block
  EXPECT_EQ(values["quire_worker_kv_blocks_capacity host"], 5);
  EXPECT_EQ(values["quire_worker_memory_bytes kv"], 21'000);
  EXPECT_EQ(values["quire_worker_memory_bytes host"], 5'000);
}

TEST(WorkerMetricsTest, ARefusedEpochIsNotCountedAndWhatItLostIsSeen) {
  WorkerMetrics metrics;
  metrics.OnEpoch(kEpoch);
  EpochObservation refused = kEpoch;
  refused.has_begun = false;
  refused.pools = {};
  metrics.OnEpoch(refused);
  Values values = Read(metrics);
  EXPECT_EQ(values["quire_worker_epochs_total"], 1);
  EXPECT_EQ(values["quire_worker_memory_bytes kv"], 0);
}

TEST(WorkerMetricsTest, StepsAddUpAndHoldingsAreThoseOfTheLast) {
  WorkerMetrics metrics;
  metrics.OnEpoch(kEpoch);
  metrics.OnStep(kStep);
  metrics.OnStep(kStep);
  ExecutedStep last = kStep;
  last.was_prepared = true;
  last.holdings = {.num_sequences = 1, .num_blocks = 2, .num_host_blocks = 3};
  metrics.OnStep(last);

  Values values = Read(metrics);
  EXPECT_EQ(values["quire_worker_steps_total"], 3);
  EXPECT_EQ(values["quire_worker_prepared_steps_total"], 1);
  EXPECT_EQ(values["quire_worker_tokens_total computed"], 90);
  EXPECT_EQ(values["quire_worker_tokens_total sampled"], 9);
  EXPECT_EQ(values["quire_worker_swap_bytes_total out"], 12'000);
  EXPECT_EQ(values["quire_worker_swap_bytes_total in"], 6'000);
  EXPECT_EQ(values["quire_worker_swap_in_failures_total"], 3);
  EXPECT_EQ(values["quire_worker_sequences"], 1);
  EXPECT_EQ(values["quire_worker_kv_blocks device"], 2);
  EXPECT_EQ(values["quire_worker_kv_blocks host"], 3);
}

TEST(WorkerMetricsTest, PartsOfAStepAreWhatTheNamesSay) {
  WorkerMetrics metrics;
  metrics.OnStep(kStep);
  Values values = Read(metrics);
  const std::map<std::string, double> seconds = {{"build", 0.001},
                                                 {"swap", 0.0005},
                                                 {"forward", 0.020},
                                                 {"compute", 0.012},
                                                 {"sample", 0.004},
                                                 {"collective", 0.010},
                                                 {"step", 0.025}};
  for (const auto& [part, sum] : seconds) {
    const std::string name = "quire_worker_step_duration_seconds " + part;
    EXPECT_DOUBLE_EQ(values[name + " sum"], sum) << part;
    EXPECT_EQ(values[name + " count"], 1) << part;
  }
}

TEST(WorkerMetricsTest, AScrubberThatHasSomethingToReadIsSeen) {
  const std::vector<std::byte> memory(1000);
  const std::vector<std::span<const std::byte>> spans = {memory};
  const WeightScrubber scrubber(spans, [] { FAIL() << "nothing changes"; });
  const WeightScrubber idle({}, [] { FAIL() << "there is nothing"; });
  WorkerMetrics metrics;

  metrics.SetWeights(123, idle);
  EXPECT_EQ(Read(metrics).count("quire_worker_scrubbed_bytes_total"), 0U);

  metrics.SetWeights(1000, scrubber);
  while (scrubber.num_passes() == 0) {
    std::this_thread::yield();
  }
  Values values = Read(metrics);
  EXPECT_EQ(values["quire_worker_memory_bytes weights"], 1000);
  EXPECT_GE(values["quire_worker_scrubbed_bytes_total"], 1000);
  EXPECT_GE(values["quire_worker_scrub_passes_total"], 1);
}

TEST(WorkerMetricsTest, ScrapesAndStepsDoNotDisturbEachOther) {
  constexpr int kNumSteps = 20'000;
  WorkerMetrics metrics;
  std::thread executor([&metrics] {
    for (int i = 0; i < kNumSteps; ++i) {
      if (i % 100 == 0) {
        metrics.OnEpoch(kEpoch);
      }
      metrics.OnStep(kStep);
    }
  });
  double last = 0;
  while (last < kNumSteps) {
    Values values = Read(metrics);
    EXPECT_GE(values["quire_worker_steps_total"], last);
    last = values["quire_worker_steps_total"];
  }
  executor.join();
  EXPECT_EQ(Read(metrics)["quire_worker_tokens_total computed"], 30.0 * kNumSteps);
}

}  // namespace
}  // namespace quire
