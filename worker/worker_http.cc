#include "worker/worker_http.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

#include "common/flags/command_line.h"
#include "common/http/http_pages.h"
#include "common/metrics/metric_family.h"
#include "common/metrics/metric_names.h"
#include "common/metrics/process_metrics.h"

namespace quire {
namespace {

constexpr std::pair<v1::WorkerPhase, const char*> kPhases[] = {
    {v1::WORKER_PHASE_LOADING, "loading"},
    {v1::WORKER_PHASE_IDLE, "idle"},
    {v1::WORKER_PHASE_BEGINNING_EPOCH, "beginning_epoch"},
    {v1::WORKER_PHASE_EXECUTING, "executing"}};

double LoadRatio(const v1::WatchReport& report) {
  if (report.phase() != v1::WORKER_PHASE_LOADING) {
    return 1;
  }
  return report.total_bytes() <= 0 ? 0
                                   : static_cast<double>(report.loaded_bytes()) /
                                         static_cast<double>(report.total_bytes());
}

// Metrics of the worker's state, which can be read even if the executor hangs.
class StateMetrics : public prometheus::Collectable {
 public:
  StateMetrics(MetricLabels info, const WorkerService& service, const WorkerProgress& progress)
      : info_(std::move(info)), service_(service), progress_(progress) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    const v1::WatchReport report = progress_.Read().report;
    std::vector<LabeledValue> phases;
    for (const auto& [phase, name] : kPhases) {
      phases.push_back({.labels = {{"phase", name}}, .value = report.phase() == phase ? 1.0 : 0.0});
    }
    const int32_t waits_for = report.has_waits_for_rank() ? report.waits_for_rank() : -1;
    return {GaugeFamily(metric::kWorkerInfo, {{.labels = info_, .value = 1}}),
            GaugeFamily(metric::kWorkerReady, service_.is_ready() ? 1 : 0),
            GaugeFamily(metric::kWorkerLive, service_.is_live() ? 1 : 0),
            GaugeFamily(metric::kWorkerPhase, phases),
            GaugeFamily(metric::kWorkerLoadRatio, LoadRatio(report)),
            GaugeFamily(metric::kWorkerWaitsForRank, waits_for)};
  }

 private:
  const MetricLabels info_;
  const WorkerService& service_;
  const WorkerProgress& progress_;
};

HttpResponse Health(bool is_well, std::string text) {
  return {.status_code = is_well ? 200 : 503, .body = std::move(text)};
}

HttpResponse Readiness(const WorkerService& service) {
  if (!service.is_loaded()) {
    return Health(false, "loading\n");
  }
  if (!service.is_live()) {
    return Health(false, "stuck\n");
  }
  const std::string refusal = service.refusal();
  return refusal.empty() ? Health(true, "ready\n")
                         : Health(false, absl::StrCat("refused: ", refusal, "\n"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> ServeWorkerHttp(const WorkerConfig& config,
                                                            const std::string& backend,
                                                            const WorkerService& service,
                                                            const WorkerProgress& progress,
                                                            MetricsRegistry& registry) {
  MetricLabels info = {{"version", std::string(Version())},
                       {"backend", backend},
                       {"rank", absl::StrCat(config.place.rank)},
                       {"tensor_parallel_size", absl::StrCat(config.place.size)}};
  registry.Add(std::make_shared<StateMetrics>(std::move(info), service, progress));
  registry.Add(std::make_shared<ProcessMetrics>());
  std::vector<HttpPage> pages;
  pages.push_back({"/healthz", [&service] { return Readiness(service); }});
  pages.push_back({"/readyz", [&service] { return Readiness(service); }});
  pages.push_back({"/livez", [&service] {
                     return Health(service.is_live(), service.is_live() ? "live\n" : "stuck\n");
                   }});
  pages.push_back({"/metrics", [&registry] {
                     return HttpResponse{
                         .body = registry.NativeText(),
                         .content_type = "text/plain; version=0.0.4; charset=utf-8"};
                   }});
  return ServePages(config.http->host, config.http->port, std::move(pages));
}

}  // namespace quire
