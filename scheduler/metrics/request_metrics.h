// RequestMetrics counts how requests ended, why they were refused, how long each of their phases
// took, and how many tokens they had. The phases are vLLM's: a request waits until a step plan
// first includes it, computes its prompt until its first token, and decodes until its last token.
// While a request is preempted, it stays in the phase that the preemption interrupted.
//
// Thread safety: construction from one thread; OnEnd from any thread; other methods from the loop.
// Cost:          a few locks per request, and two per step for all OnInterToken calls of the step.
#ifndef QUIRE_SCHEDULER_METRICS_REQUEST_METRICS_H_
#define QUIRE_SCHEDULER_METRICS_REQUEST_METRICS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/metrics/registry.h"
#include "scheduler/loop/loop_observer.h"
#include "scheduler/metrics/histogram_batch.h"
#include "scheduler/metrics/metric_pair.h"

namespace quire {

class RequestMetrics {
 public:
  // max_model_len: bounds the largest bucket of token counts. The registry must outlive this
  // object.
  RequestMetrics(MetricsRegistry* registry, const std::string& model_name, int32_t max_model_len);

  void OnFirstToken(int64_t latency_ns) { first_token_.ObserveNanos(latency_ns); }
  void OnInterToken(int64_t latency_ns) { inter_token_.ObserveNanos(latency_ns); }
  // Exports the latencies that OnInterToken has gathered.
  void Flush() { inter_token_.Flush(); }
  void OnEnd(const RequestObservation& request);

 private:
  static constexpr size_t kNumOutcomes = 6;
  // Each of these refusal reasons has its own label. All other reasons are clients' mistakes, and
  // share the label "invalid".
  static constexpr std::array<std::string_view, 13> kRefusals = {"QUEUE_FULL",
                                                                 "QUEUE_TOKENS",
                                                                 "TENANT_LIMIT",
                                                                 "DEADLINE_UNREACHABLE",
                                                                 "EXCEEDS_CAPACITY",
                                                                 "PROMPT_TOO_LONG",
                                                                 "LOADING",
                                                                 "STANDBY",
                                                                 "NO_WORKERS",
                                                                 "SUPERSEDED",
                                                                 "DRAINING",
                                                                 "API_KEY",
                                                                 "TENANT_OF_KEY"};

  void MakeTimes(MetricsRegistry& registry, const std::string& model_name);
  void MakeCounts(MetricsRegistry& registry,
                  const std::string& model_name,
                  const MetricBuckets& token_buckets);
  void ObserveParts(const RequestObservation& request) const;
  void ObserveTokens(const RequestObservation& request) const;

  std::array<prometheus::Counter*, kNumOutcomes> outcomes_{};
  std::array<prometheus::Counter*, kNumOutcomes> vllm_outcomes_{};  // null: no counterpart in vLLM
  // One counter for each reason in kRefusals; the last counter is for all other reasons.
  std::array<prometheus::Counter*, kRefusals.size() + 1> refusals_{};

  HistogramPair first_token_;
  HistogramBatch inter_token_;
  HistogramPair request_;
  HistogramPair queue_;
  HistogramPair prefill_;
  HistogramPair decode_;
  HistogramPair inference_;
  HistogramPair per_output_token_;
  HistogramPair prompt_tokens_;
  HistogramPair output_tokens_;   // of each sequence
  HistogramPair longest_output_;  // of each request's longest sequence
  HistogramPair max_tokens_;
  HistogramPair num_sequences_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_METRICS_REQUEST_METRICS_H_
