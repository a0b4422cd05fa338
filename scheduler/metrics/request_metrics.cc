#include "scheduler/metrics/request_metrics.h"

#include <algorithm>

#include "absl/strings/ascii.h"

#include "common/base/string_view.h"

namespace quire {
namespace {

struct OutcomeName {
  RequestOutcome outcome;
  const char* name;
  const char* vllm_name;  // null: vLLM does not count such a request as finished
};

constexpr OutcomeName kOutcomes[] = {
    {RequestOutcome::kStop, "stop", "stop"},
    {RequestOutcome::kLength, "length", "length"},
    {RequestOutcome::kAborted, "abort", "abort"},
    {RequestOutcome::kExpired, "deadline", "abort"},
    {RequestOutcome::kRejected, "rejected", nullptr},
    {RequestOutcome::kError, "error", "error"},
};

}  // namespace

RequestMetrics::RequestMetrics(MetricsRegistry* registry,
                               const std::string& model_name,
                               int32_t max_model_len)
    : inter_token_(
          {&registry->Histogram(metric::kInterTokenLatency, InterTokenBuckets()),
           &registry->Histogram(
               metric::kVllmInterTokenLatency, InterTokenBuckets(), ForeignLabels(model_name))},
          InterTokenBuckets()) {
  MetricsRegistry& r = *registry;
  for (const OutcomeName& entry : kOutcomes) {
    const auto index = static_cast<size_t>(entry.outcome);
    outcomes_[index] = &r.Counter(metric::kRequestsTotal, {{"outcome", entry.name}});
    if (entry.vllm_name != nullptr) {
      vllm_outcomes_[index] = &r.Counter(
          metric::kVllmSuccess, ForeignLabels(model_name, {{"finished_reason", entry.vllm_name}}));
    }
  }
  for (size_t i = 0; i < kRefusals.size(); ++i) {
    refusals_[i] = &r.Counter(metric::kAdmissionRejectsTotal,
                              {{"reason", absl::AsciiStrToLower(ToAbsl(kRefusals[i]))}});
  }
  refusals_.back() = &r.Counter(metric::kAdmissionRejectsTotal, {{"reason", "invalid"}});
  MakeTimes(r, model_name);
  MakeCounts(r, model_name, OneTwoFiveBuckets(max_model_len));
}

void RequestMetrics::MakeTimes(MetricsRegistry& registry, const std::string& model_name) {
  const auto pair = [&registry, &model_name](const MetricInfo& native,
                                             const MetricInfo& foreign,
                                             const MetricBuckets& buckets) {
    return HistogramPair{&registry.Histogram(native, buckets),
                         &registry.Histogram(foreign, buckets, ForeignLabels(model_name))};
  };
  first_token_ =
      pair(metric::kTimeToFirstToken, metric::kVllmTimeToFirstToken, FirstTokenBuckets());
  per_output_token_ =
      pair(metric::kTimePerOutputToken, metric::kVllmTimePerOutputToken, InterTokenBuckets());
  request_ = pair(metric::kRequestDuration, metric::kVllmRequestDuration, RequestBuckets());
  queue_ = pair(metric::kQueueTime, metric::kVllmQueueTime, RequestBuckets());
  prefill_ = pair(metric::kPrefillTime, metric::kVllmPrefillTime, RequestBuckets());
  decode_ = pair(metric::kDecodeTime, metric::kVllmDecodeTime, RequestBuckets());
  inference_ = pair(metric::kInferenceTime, metric::kVllmInferenceTime, RequestBuckets());
}

void RequestMetrics::MakeCounts(MetricsRegistry& registry,
                                const std::string& model_name,
                                const MetricBuckets& token_buckets) {
  const auto pair = [&registry, &model_name](const MetricInfo& native,
                                             const MetricInfo& foreign,
                                             const MetricBuckets& buckets) {
    return HistogramPair{&registry.Histogram(native, buckets),
                         &registry.Histogram(foreign, buckets, ForeignLabels(model_name))};
  };
  prompt_tokens_ =
      pair(metric::kRequestPromptTokens, metric::kVllmRequestPromptTokens, token_buckets);
  output_tokens_ =
      pair(metric::kRequestOutputTokens, metric::kVllmRequestGenerationTokens, token_buckets);
  longest_output_ =
      pair(metric::kRequestLongestOutput, metric::kVllmRequestMaxGenerationTokens, token_buckets);
  max_tokens_ = pair(metric::kRequestMaxTokens, metric::kVllmRequestMaxTokens, token_buckets);
  num_sequences_ = pair(metric::kRequestSequences, metric::kVllmRequestN, SequenceCountBuckets());
}

void RequestMetrics::OnEnd(const RequestObservation& request) {
  const auto index = static_cast<size_t>(request.outcome);
  outcomes_[index]->Increment();
  if (request.outcome == RequestOutcome::kRejected) {
    const auto* const reason = std::ranges::find(kRefusals, request.refusal);
    refusals_[static_cast<size_t>(reason - kRefusals.begin())]->Increment();
    return;
  }
  vllm_outcomes_[index]->Increment();
  request_.ObserveNanos(request.duration_ns);
  ObserveParts(request);
  ObserveTokens(request);
}

void RequestMetrics::ObserveParts(const RequestObservation& request) const {
  if (request.queue_ns.has_value()) {
    queue_.ObserveNanos(*request.queue_ns);
  }
  if (!request.prefill_ns.has_value() || !request.decode_ns.has_value()) {
    return;
  }
  prefill_.ObserveNanos(*request.prefill_ns);
  decode_.ObserveNanos(*request.decode_ns);
  inference_.ObserveNanos(*request.prefill_ns + *request.decode_ns);
  if (request.longest_new_output > 1) {
    per_output_token_.ObserveNanos(*request.decode_ns / (request.longest_new_output - 1));
  }
}

void RequestMetrics::ObserveTokens(const RequestObservation& request) const {
  prompt_tokens_.Observe(request.num_prompt_tokens);
  max_tokens_.Observe(request.max_tokens);
  num_sequences_.Observe(static_cast<double>(request.num_output_tokens.size()));
  int32_t longest = 0;
  for (int32_t num_tokens : request.num_output_tokens) {
    output_tokens_.Observe(num_tokens);
    longest = std::max(longest, num_tokens);
  }
  longest_output_.Observe(longest);
}

}  // namespace quire
