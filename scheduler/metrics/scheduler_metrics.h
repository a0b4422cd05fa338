// SchedulerMetrics turns the loop's events into metrics, under our names and, for a few metrics,
// also under vLLM's names, which routers know.
//
// Thread safety: construction from one thread; OnRequestEnd from any thread; other methods of
// LoopObserver from the loop.
#ifndef QUIRE_SCHEDULER_METRICS_SCHEDULER_METRICS_H_
#define QUIRE_SCHEDULER_METRICS_SCHEDULER_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/metrics/registry.h"
#include "common/step/rank_status.h"
#include "scheduler/core/core_stats.h"
#include "scheduler/loop/loop_observer.h"
#include "scheduler/metrics/kv_block_metrics.h"
#include "scheduler/metrics/metric_pair.h"
#include "scheduler/metrics/request_metrics.h"

namespace quire {

class SchedulerMetrics : public LoopObserver {
 public:
  // max_model_len: bounds the largest bucket of token counts. The registry must outlive this
  // object.
  SchedulerMetrics(MetricsRegistry* registry,
                   const std::string& version,
                   const std::string& model_name,
                   int32_t max_model_len,
                   bool has_prefix_caching);

  void OnStep(const StepObservation& step) override;
  void OnFirstToken(int64_t latency_ns) override { requests_.OnFirstToken(latency_ns); }
  void OnInterToken(int64_t latency_ns) override { requests_.OnInterToken(latency_ns); }
  void OnRequestEnd(const RequestObservation& request) override { requests_.OnEnd(request); }
  void OnStats(const CoreStats& stats, const SwapBytes& swap_bytes) override;
  void OnGroupReady(const StepLimits& limits,
                    const std::string& kv_cache_dtype,
                    int64_t block_bytes) override;
  void OnGroupLost() override;
  void OnStandby(bool stands_by) override { standby_->Set(stands_by ? 1 : 0); }
  void OnStaleReply() override;
  void OnTurn(int64_t turn_ns) override { loop_turn_.ObserveNanos(turn_ns); }

  void SetDraining();
  // May be called from any thread.
  void SetRanks(const std::vector<RankStatus>& ranks);

 private:
  MetricLabels Foreign(MetricLabels labels = {}) const;
  void SetInfo(const MetricInfo& info, const MetricLabels& labels, prometheus::Gauge** gauge);
  void MakeGauges();
  void SetBlockCounters(const CoreStats& stats);
  void MakeCounters();
  void MakeBlockCounters();
  void MakeHistograms();

  MetricsRegistry* const registry_;
  const std::string model_name_;
  const bool has_prefix_caching_;
  RequestMetrics requests_;
  const std::shared_ptr<KvBlockMetrics> blocks_ = std::make_shared<KvBlockMetrics>();

  prometheus::Gauge* worker_up_ = nullptr;
  prometheus::Gauge* standby_ = nullptr;
  prometheus::Gauge* draining_ = nullptr;
  prometheus::Gauge* block_bytes_ = nullptr;
  prometheus::Gauge* block_tokens_ = nullptr;
  prometheus::Gauge* requests_running_ = nullptr;
  prometheus::Gauge* requests_waiting_ = nullptr;
  prometheus::Gauge* requests_swapped_ = nullptr;
  prometheus::Gauge* queued_tokens_ = nullptr;
  prometheus::Gauge* crash_suspects_ = nullptr;
  prometheus::Gauge* model_info_ = nullptr;
  prometheus::Gauge* vllm_cache_config_ = nullptr;
  prometheus::Gauge* vllm_running_ = nullptr;
  prometheus::Gauge* vllm_waiting_ = nullptr;
  prometheus::Gauge* vllm_waiting_for_capacity_ = nullptr;
  prometheus::Gauge* vllm_kv_usage_ = nullptr;

  CounterPair prompt_tokens_;
  CounterPair generated_tokens_;
  CounterPair recomputed_tokens_;
  CounterPair recompute_preemptions_;
  CounterPair swap_preemptions_;
  CounterPair preemptions_;  // preemptions of both modes
  CounterPair swap_bytes_out_;
  CounterPair swap_bytes_in_;
  CounterPair swap_in_failures_;
  CounterPair prefix_hits_;
  CounterPair prefix_misses_;
  CounterPair prefix_queries_;
  CounterPair non_finite_;
  CounterPair poison_requests_;
  CounterPair vllm_prompt_tokens_;
  CounterPair vllm_prompt_tokens_cached_;
  CounterPair vllm_prompt_tokens_computed_;
  CounterPair vllm_prompt_tokens_found_;
  CounterPair blocks_allocated_;
  CounterPair blocks_evicted_;
  CounterPair blocks_found_;
  CounterPair blocks_forked_;
  CounterPair blocks_copied_;
  CounterPair blocks_swapped_out_;
  CounterPair blocks_swapped_in_;
  prometheus::Counter* steps_ = nullptr;
  prometheus::Counter* group_losses_ = nullptr;
  prometheus::Counter* stale_replies_ = nullptr;
  HistogramPair step_plan_;
  HistogramPair step_round_trip_;
  HistogramPair step_apply_;
  HistogramPair step_publish_;
  HistogramPair step_build_;
  HistogramPair step_forward_;
  HistogramPair step_sample_;
  HistogramPair step_collective_;
  prometheus::Histogram* step_sequences_ = nullptr;
  HistogramPair step_tokens_;
  HistogramPair loop_turn_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_METRICS_SCHEDULER_METRICS_H_
