#include "deploy/gateway/gateway_metrics.h"

#include "absl/strings/str_cat.h"

#include "common/base/clock.h"

namespace quire {
namespace {

double SecondsOf(int64_t nanos) {
  return static_cast<double>(nanos) / static_cast<double>(kNanosPerSecond);
}

}  // namespace

GatewayMetrics::GatewayMetrics(MetricsRegistry& registry)
    : registry_(registry),
      streams_(registry.Gauge(metric::kGatewayStreams)),
      resumed_(registry.Counter(metric::kGatewayResumedStreamsTotal)),
      template_seconds_(registry.Histogram(metric::kGatewayTemplateSeconds, StepBuckets())) {}

void GatewayMetrics::OnEvent(const HttpEvent& event) {
  const std::string route = event.route.empty() ? "other" : std::string(event.route);
  if (event.kind == HttpEvent::Kind::kBegun) {
    registry_.Histogram(metric::kGatewayFirstByteSeconds, FirstTokenBuckets(), {{"route", route}})
        .Observe(SecondsOf(event.elapsed_ns));
    return;
  }
  // A response that ended early, for example because the client left, counts as 499, as in nginx.
  const std::string status = event.was_cut ? "499" : absl::StrCat(event.status_code);
  registry_.Counter(metric::kGatewayRequestsTotal, {{"route", route}, {"status", status}})
      .Increment();
}

void GatewayMetrics::OnTemplate(int64_t elapsed_ns) {
  template_seconds_.Observe(SecondsOf(elapsed_ns));
}

}  // namespace quire
