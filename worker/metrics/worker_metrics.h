// WorkerMetrics observes the executor and exports Prometheus metrics. common/metrics/metric_names.h
// has the names and meanings of the metrics.
//
// Thread safety: OnEpoch and OnStep from the executor thread, all other methods from any.
// Cost:          OnStep: some twenty atomic additions and no lock, 0.1 us (step_metrics_bench).
#ifndef QUIRE_WORKER_METRICS_WORKER_METRICS_H_
#define QUIRE_WORKER_METRICS_WORKER_METRICS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

#include "common/base/mutex.h"
#include "worker/metrics/time_histogram.h"
#include "worker/runtime/step_observer.h"
#include "worker/runtime/weight_scrubber.h"

namespace quire {

class WorkerMetrics : public StepObserver, public prometheus::Collectable {
 public:
  // Called when the model is loaded. The scrubber must outlive every later call of Collect.
  void SetWeights(int64_t weight_bytes, const WeightScrubber& scrubber);

  void OnEpoch(const EpochObservation& epoch) override;
  void OnStep(const ExecutedStep& step) override;

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  // Parts of a step's time, in the order of kPartNames.
  enum Part : uint8_t {
    kBuild,
    kSwap,
    kForward,
    kCompute,
    kSample,
    kCollective,
    kMap,
    kStep,
    kNumParts
  };

  using Number = std::atomic<int64_t>;

  void SetHoldings(const WorkerHoldings& holdings);
  void Observe(Part part, int64_t nanos) { parts_[part].Observe(nanos); }
  prometheus::MetricFamily Parts() const;
  void AddWindows(const WorkerPools& pools, std::vector<prometheus::MetricFamily>* families) const;

  int64_t block_bytes_ = 0;  // used by the executor thread only

  std::array<TimeHistogram, kNumParts> parts_;
  Number num_epochs_{0};
  Number num_steps_{0};
  Number num_prepared_steps_{0};
  Number num_tokens_{0};
  Number num_sampled_{0};
  Number swapped_out_bytes_{0};
  Number swapped_in_bytes_{0};
  Number num_failed_swap_ins_{0};
  Number num_sequences_{0};
  Number num_blocks_{0};
  Number num_host_blocks_{0};
  Number num_places_{0};
  Number num_places_found_{0};
  Number num_places_mapped_{0};
  Number num_places_mapped_ahead_{0};
  Number num_places_taken_down_{0};
  Number num_window_refusals_{0};
  Number weight_bytes_{0};
  std::atomic<const WeightScrubber*> scrubber_{nullptr};

  mutable Mutex mutex_;
  // The last epoch. OnStep, which takes no lock, does not use it.
  EpochObservation epoch_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_WORKER_METRICS_WORKER_METRICS_H_
