#include "scheduler/sim/throughput_panel.h"

#include <utility>

#include "common/base/status_macros.h"
#include "scheduler/sim/figure_runs.h"
#include "scheduler/sim/throughput.h"

namespace quire {

absl::StatusOr<PolicyRates> MakePanel(const ThroughputPanel& panel, Figure* figure) {
  PolicyRates rates;
  Plot plot{.file_name = panel.file_name,
            .title = panel.title,
            .x_label = "requests/s",
            .y_label = "s/token, mean"};
  for (MemoryPolicy policy : panel.policies) {
    SimConfig config = ConfigFor(panel.platform, policy);
    config.prefix_caching = panel.prefix_caching;
    config.num_sequences = panel.num_sequences;
    config.num_beams = panel.num_beams;
    absl::StatusOr<SustainedRate> found =
        FindSustainedRate(config, panel.trace_at_rate, panel.guess);
    QUIRE_RETURN_IF_ERROR(found.status());
    rates[policy] = found->requests_per_second;
    Series series{.name = LabelOf(policy)};
    for (const RatePoint& point : found->points) {
      series.points.emplace_back(point.requests_per_second, point.latency_s);
    }
    plot.series.push_back(std::move(series));
  }
  figure->plots.push_back(std::move(plot));
  return rates;
}

double PagedOver(const PolicyRates& rates, MemoryPolicy other) {
  return rates.at(MemoryPolicy::kPaged) / rates.at(other);
}

}  // namespace quire
