#include "worker/metrics/worker_metrics.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/metrics/metric_family.h"
#include "common/metrics/metric_names.h"

namespace quire {
namespace {

constexpr std::array<const char*, 8> kPartNames = {
    "build", "swap", "forward", "compute", "sample", "collective", "map", "step"};

void Add(std::atomic<int64_t>& number, int64_t more) {
  number.fetch_add(more, std::memory_order_relaxed);
}

double Read(const std::atomic<int64_t>& number) {
  return static_cast<double>(number.load(std::memory_order_relaxed));
}

double Bytes(const WorkerPools& pools, int64_t num_blocks) {
  return static_cast<double>(pools.block_bytes * num_blocks);
}

// Returns the number of blocks that sequences may have: all except the null block.
double NumUsable(const WorkerPools& pools) {
  return static_cast<double>(std::max<int64_t>(0, pools.num_blocks - 1));
}

}  // namespace

void WorkerMetrics::SetWeights(int64_t weight_bytes, const WeightScrubber& scrubber) {
  weight_bytes_.store(weight_bytes, std::memory_order_relaxed);
  scrubber_.store(&scrubber, std::memory_order_release);
}

void WorkerMetrics::OnEpoch(const EpochObservation& epoch) {
  block_bytes_ = epoch.pools.block_bytes;
  Add(num_epochs_, epoch.has_begun ? 1 : 0);
  SetHoldings(epoch.holdings);
  const MutexLock lock(mutex_);
  epoch_ = epoch;
}

void WorkerMetrics::OnStep(const ExecutedStep& step) {
  Observe(kBuild, step.build_ns);
  Observe(kSwap, step.swap_ns);
  Observe(kForward, step.forward_ns);
  Observe(kCompute, step.forward_ns - step.forward_collective_ns);
  Observe(kSample, step.sample_ns);
  Observe(kCollective, step.forward_collective_ns + step.sample_collective_ns);
  Observe(kMap, step.map_ns);
  Observe(kStep, step.build_ns + step.forward_ns + step.sample_ns);
  Add(num_steps_, 1);
  Add(num_prepared_steps_, step.was_prepared ? 1 : 0);
  Add(num_tokens_, step.num_tokens);
  Add(num_sampled_, step.num_sampled);
  Add(swapped_out_bytes_, step.num_swapped_out * block_bytes_);
  Add(swapped_in_bytes_, step.num_swapped_in * block_bytes_);
  Add(num_failed_swap_ins_, step.num_failed_swap_ins);
  Add(num_places_found_, step.windows.num_found);
  Add(num_places_mapped_, step.windows.num_mapped);
  Add(num_places_mapped_ahead_, step.windows.num_mapped_ahead);
  Add(num_places_taken_down_, step.windows.num_taken_down);
  Add(num_window_refusals_, step.windows.was_refused ? 1 : 0);
  SetHoldings(step.holdings);
}

void WorkerMetrics::SetHoldings(const WorkerHoldings& holdings) {
  num_sequences_.store(holdings.num_sequences, std::memory_order_relaxed);
  num_blocks_.store(holdings.num_blocks, std::memory_order_relaxed);
  num_host_blocks_.store(holdings.num_host_blocks, std::memory_order_relaxed);
  num_places_.store(holdings.num_places, std::memory_order_relaxed);
}

prometheus::MetricFamily WorkerMetrics::Parts() const {
  static_assert(kPartNames.size() == kNumParts);
  std::vector<LabeledHistogram> histograms;
  for (size_t part = 0; part < kNumParts; ++part) {
    histograms.push_back(
        {.labels = {{"part", kPartNames[part]}}, .histogram = parts_[part].Read()});
  }
  return HistogramFamily(metric::kWorkerStepDuration, std::move(histograms));
}

void WorkerMetrics::AddWindows(const WorkerPools& pools,
                               std::vector<prometheus::MetricFamily>* families) const {
  families->push_back(CounterFamily(metric::kWorkerWindowPlacesTotal,
                                    {{{{"how", "found"}}, Read(num_places_found_)},
                                     {{{"how", "mapped"}}, Read(num_places_mapped_)},
                                     {{{"how", "mapped_ahead"}}, Read(num_places_mapped_ahead_)},
                                     {{{"how", "taken_down"}}, Read(num_places_taken_down_)}}));
  families->push_back(GaugeFamily(metric::kWorkerWindowPlaces, Read(num_places_)));
  families->push_back(
      GaugeFamily(metric::kWorkerWindowPlacesLimit, static_cast<double>(pools.max_places)));
  families->push_back(
      CounterFamily(metric::kWorkerWindowRefusalsTotal, Read(num_window_refusals_)));
}

std::vector<prometheus::MetricFamily> WorkerMetrics::Collect() const {
  EpochObservation epoch;
  {
    const MutexLock lock(mutex_);
    epoch = epoch_;
  }
  const WorkerPools& pools = epoch.pools;
  std::vector<prometheus::MetricFamily> families = {
      Parts(),
      CounterFamily(metric::kWorkerEpochsTotal, Read(num_epochs_)),
      CounterFamily(metric::kWorkerStepsTotal, Read(num_steps_)),
      CounterFamily(metric::kWorkerPreparedStepsTotal, Read(num_prepared_steps_)),
      CounterFamily(metric::kWorkerTokensTotal,
                    {{{{"kind", "computed"}}, Read(num_tokens_)},
                     {{{"kind", "sampled"}}, Read(num_sampled_)}}),
      CounterFamily(metric::kWorkerSwapBytesTotal,
                    {{{{"direction", "out"}}, Read(swapped_out_bytes_)},
                     {{{"direction", "in"}}, Read(swapped_in_bytes_)}}),
      CounterFamily(metric::kWorkerSwapInFailuresTotal, Read(num_failed_swap_ins_)),
      GaugeFamily(metric::kWorkerSequences, Read(num_sequences_)),
      GaugeFamily(metric::kWorkerKvBlocks,
                  {{{{"tier", "device"}}, Read(num_blocks_)},
                   {{{"tier", "host"}}, Read(num_host_blocks_)}}),
      GaugeFamily(metric::kWorkerKvBlocksCapacity,
                  {{{{"tier", "device"}}, NumUsable(pools)},
                   {{{"tier", "host"}}, static_cast<double>(pools.num_host_blocks)}}),
      GaugeFamily(metric::kWorkerMemory,
                  {{{{"kind", "weights"}}, Read(weight_bytes_)},
                   {{{"kind", "kv"}}, Bytes(pools, pools.num_blocks)},
                   {{{"kind", "host"}}, Bytes(pools, pools.num_host_blocks)},
                   {{{"kind", "padding"}},
                    static_cast<double>(pools.padding_bytes *
                                        (pools.num_blocks + pools.num_host_blocks))}})};
  if (epoch.group_epoch != 0) {
    families.push_back(GaugeFamily(metric::kWorkerGroupEpoch,
                                   {{{{"incarnation", absl::StrCat(epoch.scheduler_incarnation)}},
                                     static_cast<double>(epoch.group_epoch)}}));
  }
  if (pools.max_places > 0) {
    AddWindows(pools, &families);
  }
  const WeightScrubber* const scrubber = scrubber_.load(std::memory_order_acquire);
  if (scrubber != nullptr && scrubber->has_memory()) {
    families.push_back(CounterFamily(metric::kWorkerScrubbedBytesTotal,
                                     static_cast<double>(scrubber->num_bytes())));
    families.push_back(CounterFamily(metric::kWorkerScrubPassesTotal,
                                     static_cast<double>(scrubber->num_passes())));
  }
  return families;
}

}  // namespace quire
