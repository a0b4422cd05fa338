#include "scheduler/metrics/scheduler_metrics.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/clock.h"

namespace quire {
namespace {

constexpr int kMaxStepSequences = 1024;

}  // namespace

SchedulerMetrics::SchedulerMetrics(MetricsRegistry* registry,
                                   const std::string& version,
                                   const std::string& model_name,
                                   int32_t max_model_len,
                                   bool has_prefix_caching)
    : registry_(registry),
      model_name_(model_name),
      has_prefix_caching_(has_prefix_caching),
      requests_(registry, model_name, max_model_len) {
  registry_->Gauge(metric::kBuildInfo, {{"version", version}}).Set(1);
  registry_->Add(blocks_);
  MakeGauges();
  MakeCounters();
  MakeBlockCounters();
  MakeHistograms();
}

MetricLabels SchedulerMetrics::Foreign(MetricLabels labels) const {
  return ForeignLabels(model_name_, std::move(labels));
}

void SchedulerMetrics::MakeGauges() {
  MetricsRegistry& r = *registry_;
  worker_up_ = &r.Gauge(metric::kWorkerUp);
  standby_ = &r.Gauge(metric::kSchedulerStandby);
  draining_ = &r.Gauge(metric::kDraining);
  requests_running_ = &r.Gauge(metric::kRequests, {{"state", "running"}});
  requests_waiting_ = &r.Gauge(metric::kRequests, {{"state", "waiting"}});
  requests_swapped_ = &r.Gauge(metric::kRequests, {{"state", "swapped"}});
  queued_tokens_ = &r.Gauge(metric::kQueuedTokens);
  block_bytes_ = &r.Gauge(metric::kKvBlockBytes);
  block_tokens_ = &r.Gauge(metric::kKvBlockTokens);
  crash_suspects_ = &r.Gauge(metric::kCrashSuspects);
  vllm_running_ = &r.Gauge(metric::kVllmRunning, Foreign());
  vllm_waiting_ = &r.Gauge(metric::kVllmWaiting, Foreign());
  vllm_waiting_for_capacity_ =
      &r.Gauge(metric::kVllmWaitingByReason, Foreign({{"reason", "capacity"}}));
  r.Gauge(metric::kVllmWaitingByReason, Foreign({{"reason", "deferred"}})).Set(0);  // always 0
  vllm_kv_usage_ = &r.Gauge(metric::kVllmKvUsage, Foreign());
}

void SchedulerMetrics::MakeCounters() {
  MetricsRegistry& r = *registry_;
  prompt_tokens_ = {&r.Counter(metric::kTokensTotal, {{"kind", "prompt"}})};
  vllm_prompt_tokens_ = {&r.Counter(metric::kVllmPromptTokens, Foreign())};
  generated_tokens_ = {&r.Counter(metric::kTokensTotal, {{"kind", "generated"}}),
                       &r.Counter(metric::kVllmGenerationTokens, Foreign())};
  recomputed_tokens_ = {&r.Counter(metric::kTokensTotal, {{"kind", "recomputed"}})};
  recompute_preemptions_ = {&r.Counter(metric::kPreemptionsTotal, {{"mode", "recompute"}})};
  swap_preemptions_ = {&r.Counter(metric::kPreemptionsTotal, {{"mode", "swap"}})};
  preemptions_ = {&r.Counter(metric::kVllmPreemptions, Foreign())};
  swap_bytes_out_ = {&r.Counter(metric::kKvSwapBytesTotal, {{"direction", "out"}})};
  swap_bytes_in_ = {&r.Counter(metric::kKvSwapBytesTotal, {{"direction", "in"}})};
  swap_in_failures_ = {&r.Counter(metric::kKvSwapInFailuresTotal)};
  prefix_hits_ = {&r.Counter(metric::kPrefixCacheTokensTotal, {{"result", "hit"}}),
                  &r.Counter(metric::kVllmPrefixCacheHits, Foreign())};
  prefix_misses_ = {&r.Counter(metric::kPrefixCacheTokensTotal, {{"result", "miss"}})};
  prefix_queries_ = {&r.Counter(metric::kVllmPrefixCacheQueries, Foreign())};
  non_finite_ = {&r.Counter(metric::kNonFiniteTotal)};
  poison_requests_ = {&r.Counter(metric::kPoisonRequestsTotal)};
  steps_ = &r.Counter(metric::kStepsTotal);
  group_losses_ = &r.Counter(metric::kGroupLossesTotal);
  stale_replies_ = &r.Counter(metric::kStaleRepliesTotal);
}

void SchedulerMetrics::MakeBlockCounters() {
  MetricsRegistry& r = *registry_;
  const auto op = [&r](const char* name) {
    return CounterPair{&r.Counter(metric::kKvBlockOpsTotal, {{"op", name}})};
  };
  blocks_allocated_ = op("alloc");
  blocks_evicted_ = op("evict");
  blocks_found_ = op("prefix_hit");
  blocks_forked_ = op("fork");
  blocks_copied_ = op("cow");
  blocks_swapped_out_ = op("swap_out");
  blocks_swapped_in_ = op("swap_in");
  const auto source = [this, &r](const char* name) {
    return CounterPair{&r.Counter(metric::kVllmPromptTokensBySource, Foreign({{"source", name}}))};
  };
  vllm_prompt_tokens_computed_ = source("local_compute");
  vllm_prompt_tokens_found_ = source("local_cache_hit");
  vllm_prompt_tokens_cached_ = {&r.Counter(metric::kVllmPromptTokensCached, Foreign())};
}

void SchedulerMetrics::MakeHistograms() {
  MetricsRegistry& r = *registry_;
  const auto part = [&r](const char* name) {
    return HistogramPair{&r.Histogram(metric::kStepDuration, StepBuckets(), {{"part", name}})};
  };
  step_plan_ = part("schedule");
  step_round_trip_ = part("round_trip");
  step_apply_ = part("apply");
  step_publish_ = part("publish");
  step_build_ = part("worker_build");
  step_forward_ = part("worker_forward");
  step_sample_ = part("worker_sample");
  step_collective_ = part("worker_collective");
  loop_turn_ = {&r.Histogram(metric::kLoopTurn, StepBuckets())};
  step_sequences_ = &r.Histogram(metric::kStepSequences, CountBuckets(kMaxStepSequences));
  step_tokens_ = {&r.Histogram(metric::kStepTokens, IterationTokenBuckets()),
                  &r.Histogram(metric::kVllmIterationTokens, IterationTokenBuckets(), Foreign())};
}

void SchedulerMetrics::OnStep(const StepObservation& step) {
  steps_->Increment();
  step_plan_.ObserveNanos(step.plan_ns);
  step_round_trip_.ObserveNanos(step.round_trip_ns);
  step_apply_.ObserveNanos(step.apply_ns);
  step_publish_.ObserveNanos(step.publish_ns);
  step_build_.ObserveNanos(step.worker.build_us * kNanosPerMicro);
  step_forward_.ObserveNanos(step.worker.forward_us * kNanosPerMicro);
  step_sample_.ObserveNanos(step.worker.sample_us * kNanosPerMicro);
  step_collective_.ObserveNanos(step.worker.collective_us * kNanosPerMicro);
  step_sequences_->Observe(step.num_sequences);
  step_tokens_.Observe(step.num_tokens);
}

void SchedulerMetrics::SetBlockCounters(const CoreStats& stats) {
  blocks_allocated_.Set(stats.num_blocks_allocated);
  blocks_evicted_.Set(stats.num_blocks_evicted);
  blocks_found_.Set(stats.num_blocks_found);
  blocks_forked_.Set(stats.num_blocks_forked);
  blocks_copied_.Set(stats.num_blocks_copied);
  blocks_swapped_out_.Set(stats.num_blocks_swapped_out);
  blocks_swapped_in_.Set(stats.num_blocks_swapped_in);
}

void SchedulerMetrics::OnStats(const CoreStats& stats, const SwapBytes& swap_bytes) {
  requests_.Flush();  // here, because the loop calls OnStats in every iteration
  blocks_->Set(stats);
  SetBlockCounters(stats);
  requests_swapped_->Set(stats.num_swapped_requests);
  requests_running_->Set(stats.num_running_requests);
  requests_waiting_->Set(stats.num_waiting_requests);
  queued_tokens_->Set(static_cast<double>(stats.num_queued_tokens));
  vllm_running_->Set(stats.num_running_requests);
  vllm_waiting_->Set(stats.num_waiting_requests + stats.num_swapped_requests);
  vllm_waiting_for_capacity_->Set(stats.num_waiting_requests + stats.num_swapped_requests);
  vllm_kv_usage_->Set(stats.num_blocks == 0 ? 0.0
                                            : double{1} * stats.num_used_blocks / stats.num_blocks);
  prompt_tokens_.Set(stats.num_prompt_tokens_computed);
  generated_tokens_.Set(stats.num_tokens_committed);
  recomputed_tokens_.Set(stats.num_recomputed_tokens);
  recompute_preemptions_.Set(stats.num_preemptions - stats.num_swap_preemptions);
  swap_preemptions_.Set(stats.num_swap_preemptions);
  preemptions_.Set(stats.num_preemptions);
  swap_bytes_out_.Set(swap_bytes.out);
  swap_bytes_in_.Set(swap_bytes.in);
  swap_in_failures_.Set(stats.num_failed_swap_ins);
  prefix_hits_.Set(stats.num_prefix_hit_tokens);
  prefix_misses_.Set(stats.num_prefix_queried_tokens - stats.num_prefix_hit_tokens);
  prefix_queries_.Set(stats.num_prefix_queried_tokens);
  vllm_prompt_tokens_.Set(stats.num_prompt_tokens_computed + stats.num_prefix_hit_tokens);
  vllm_prompt_tokens_computed_.Set(stats.num_prompt_tokens_computed);
  vllm_prompt_tokens_found_.Set(stats.num_prefix_hit_tokens);
  vllm_prompt_tokens_cached_.Set(stats.num_prefix_hit_tokens);
  non_finite_.Set(stats.num_non_finite);
  crash_suspects_->Set(stats.num_suspects);
  poison_requests_.Set(stats.num_poison_requests);
}

void SchedulerMetrics::OnGroupReady(const StepLimits& limits,
                                    const std::string& kv_cache_dtype,
                                    int64_t block_bytes) {
  worker_up_->Set(1);
  block_bytes_->Set(static_cast<double>(block_bytes));
  block_tokens_->Set(limits.block_size_tokens);
  SetInfo(metric::kModelInfo,
          {{"model_name", model_name_},
           {"kv_cache_dtype", kv_cache_dtype},
           {"block_size", absl::StrCat(limits.block_size_tokens)},
           {"max_model_len", absl::StrCat(limits.max_model_len)}},
          &model_info_);
  SetInfo(metric::kVllmCacheConfig,
          Foreign({{"block_size", absl::StrCat(limits.block_size_tokens)},
                   {"num_gpu_blocks", absl::StrCat(limits.num_blocks - 1)},
                   {"cache_dtype", kv_cache_dtype},
                   {"enable_prefix_caching", has_prefix_caching_ ? "True" : "False"}}),
          &vllm_cache_config_);
}

// Replaces the gauge of an info metric, which keeps its information in labels: a gauge's labels
// cannot change.
void SchedulerMetrics::SetInfo(const MetricInfo& info,
                               const MetricLabels& labels,
                               prometheus::Gauge** gauge) {
  if (*gauge != nullptr) {
    registry_->Remove(info, *gauge);
  }
  *gauge = &registry_->Gauge(info, labels);
  (*gauge)->Set(1);
}

void SchedulerMetrics::OnGroupLost() {
  worker_up_->Set(0);
  group_losses_->Increment();
}

void SchedulerMetrics::OnStaleReply() { stale_replies_->Increment(); }

void SchedulerMetrics::SetRanks(const std::vector<RankStatus>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    registry_->Gauge(metric::kRankReady, {{"rank", absl::StrCat(rank)}})
        .Set(ranks[rank].phase == RankPhase::kReady ? 1 : 0);
  }
}

void SchedulerMetrics::SetDraining() { draining_->Set(1); }

}  // namespace quire
