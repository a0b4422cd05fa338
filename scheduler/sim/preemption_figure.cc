// Our own figure: it compares kAuto, which chooses between swapping and recomputing by measured
// cost, with the fixed modes kSwap and kRecompute.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "scheduler/sim/figure_runs.h"
#include "scheduler/sim/paper_figures.h"
#include "scheduler/sim/throughput.h"

namespace quire {
namespace {

constexpr char kPlatform[] = "a100-opt-13b";
constexpr int32_t kBlockSizes[] = {1, 8, 16, 64, 256};
constexpr double kLinkSpeeds[] = {0.1, 1, 10};  // multiples of the platform's host_rate
constexpr double kOverload = 1.2;               // multiple of the sustained rate

// Our target for every cell: an upper bound on Latencies::ratio(). A cell is a block size with a
// link speed.
constexpr double kNeverAbove = 1.02;
// Our target for the cell where kAuto gains most: an upper bound on Latencies::ratio().
constexpr double kSomewhereBelow = 0.85;

// Upper bound on the length of an Alpaca trace. An hour would have about 100,000 short requests and
// give the same result.
constexpr double kAlpacaMinutes = 10;

// Mean normalized latency with each preemption mode, in seconds a token.
struct Latencies {
  double recompute = 0;
  double swap = 0;
  double automatic = 0;

  double ratio() const { return automatic / std::min(recompute, swap); }
};

absl::StatusOr<double> LatencyOf(SimConfig config, PreemptionMode mode, const Trace& trace) {
  config.preemption_mode = mode;
  absl::StatusOr<SimResult> result = RunSimulation(config, trace);
  QUIRE_RETURN_IF_ERROR(result.status());
  return result->mean_normalized_latency_s;
}

absl::StatusOr<Latencies> MeasureCell(SimConfig config, double link_speed, const Trace& trace) {
  config.platform.gpu.host_rate *= link_speed;
  Latencies cell;
  QUIRE_ASSIGN_OR_RETURN(cell.recompute, LatencyOf(config, PreemptionMode::kRecompute, trace));
  QUIRE_ASSIGN_OR_RETURN(cell.swap, LatencyOf(config, PreemptionMode::kSwap, trace));
  QUIRE_ASSIGN_OR_RETURN(cell.automatic, LatencyOf(config, PreemptionMode::kAuto, trace));
  return cell;
}

// Returns a trace at kOverload times the rate that `config` sustains. REQUIRES:
// config.preemption_mode is kRecompute.
absl::StatusOr<Trace> OverloadTrace(const Dataset& dataset,
                                    double guess,
                                    const SimConfig& config,
                                    const FigureOptions& options) {
  const auto trace_at_rate = [&](double rate) {
    return PoissonTrace(TraceFor(dataset.lengths, rate, kPlatform, options));
  };
  absl::StatusOr<SustainedRate> most = FindSustainedRate(config, trace_at_rate, guess);
  QUIRE_RETURN_IF_ERROR(most.status());
  return trace_at_rate(kOverload * most->requests_per_second);
}

// Adds a row and a point for each block size and link speed. Returns the least Latencies::ratio().
absl::StatusOr<double> AddCells(const Dataset& dataset,
                                double guess,
                                const FigureOptions& options,
                                Figure* figure) {
  Plot plot{
      .file_name = dataset.name == "Alpaca-like" ? "preemption-alpaca" : "preemption-sharegpt",
      .title = absl::StrCat("auto over the better fixed mode, ", dataset.name),
      .x_label = "tokens in a block",
      .y_label = "latency ratio",
      .has_log_x = true};
  double least = std::numeric_limits<double>::infinity();
  for (double link_speed : kLinkSpeeds) {
    plot.series.push_back({.name = absl::StrCat("link x ", link_speed)});
  }
  for (int32_t block_size : kBlockSizes) {
    SimConfig config = ConfigFor(kPlatform, MemoryPolicy::kPaged);
    config.block_size_tokens = block_size;
    QUIRE_ASSIGN_OR_RETURN(const Trace trace, OverloadTrace(dataset, guess, config, options));
    for (size_t i = 0; i < std::size(kLinkSpeeds); ++i) {
      QUIRE_ASSIGN_OR_RETURN(const Latencies cell, MeasureCell(config, kLinkSpeeds[i], trace));
      figure->rows.push_back(Claim(absl::StrCat(dataset.name,
                                                ", B = ",
                                                block_size,
                                                ", link x ",
                                                kLinkSpeeds[i],
                                                ": ",
                                                FormatNumber(cell.recompute),
                                                ", ",
                                                FormatNumber(cell.swap),
                                                ", ",
                                                FormatNumber(cell.automatic)),
                                   absl::StrCat("at most ", FormatNumber(kNeverAbove)),
                                   FormatNumber(cell.ratio()),
                                   cell.ratio() <= kNeverAbove));
      plot.series[i].points.emplace_back(block_size, cell.ratio());
      least = std::min(least, cell.ratio());
    }
  }
  figure->plots.push_back(std::move(plot));
  return least;
}

}  // namespace

absl::StatusOr<Figure> MakePreemption(const FigureOptions& options) {
  Figure figure{.title =
                    "Preemption at 1.2 times saturation (OPT-13B): s/token of recompute, swap "
                    "and auto; auto over the better of the others (targets: our own)"};
  QUIRE_ASSIGN_OR_RETURN(const double share_gpt,
                         AddCells(ShareGptDataset(), 2.4, options, &figure));
  FigureOptions shorter = options;
  shorter.trace_minutes = std::min(options.trace_minutes, kAlpacaMinutes);
  QUIRE_ASSIGN_OR_RETURN(const double alpaca, AddCells(AlpacaDataset(), 50, shorter, &figure));
  const double least = std::min(share_gpt, alpaca);
  figure.rows.push_back(Claim("the least of these ratios",
                              absl::StrCat("at most ", FormatNumber(kSomewhereBelow)),
                              FormatNumber(least),
                              least <= kSomewhereBelow));
  return figure;
}

}  // namespace quire
