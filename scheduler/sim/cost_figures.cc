// Fig 18b and Fig 19 of the PagedAttention paper: effect of the block size on latency, on swapping
// and on recomputing.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "scheduler/sim/figure_runs.h"
#include "scheduler/sim/paper_figures.h"
#include "scheduler/sim/swap_cost.h"
#include "scheduler/sim/throughput.h"

namespace quire {
namespace {

constexpr char kOpt13B[] = "a100-opt-13b";
constexpr int32_t kBlockSizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};

// Request rate of Fig 18b, as a share of the rate that blocks of 16 tokens sustain. The paper does
// not give the rate.
constexpr double kLoad = 0.9;

// A latency of at most this multiple of the least latency is "as good as the best", as the paper
// says.
constexpr double kAsGood = 1.1;
// A latency of at least this multiple of the least latency "degrades sharply", as the paper says.
constexpr double kMuchWorse = 1.5;

// Tokens of the sequence that is preempted in Fig 19.
constexpr int32_t kSwappedTokens = 256;

using ByBlockSize = std::map<int32_t, double>;  // mean normalized latency, in seconds a token

absl::StatusOr<ByBlockSize> LatencyByBlockSize(const Dataset& dataset,
                                               double guess,
                                               const FigureOptions& options) {
  const auto trace_at_rate = [&](double rate) {
    return PoissonTrace(TraceFor(dataset.lengths, rate, kOpt13B, options));
  };
  SimConfig config = ConfigFor(kOpt13B, MemoryPolicy::kPaged);
  absl::StatusOr<SustainedRate> most = FindSustainedRate(config, trace_at_rate, guess);
  QUIRE_RETURN_IF_ERROR(most.status());
  const Trace trace = trace_at_rate(kLoad * most->requests_per_second);
  ByBlockSize latency;
  for (int32_t block_size : kBlockSizes) {
    config.block_size_tokens = block_size;
    absl::StatusOr<SimResult> result = RunSimulation(config, trace);
    QUIRE_RETURN_IF_ERROR(result.status());
    latency[block_size] = result->mean_normalized_latency_s;
  }
  return latency;
}

double Least(const ByBlockSize& latency) {
  return std::min_element(latency.begin(),
                          latency.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->second;
}

FigureRow AsGoodRow(const Dataset& dataset, const ByBlockSize& latency, int32_t from, int32_t to) {
  double worst = 0;
  for (const auto& [block_size, seconds] : latency) {
    if (block_size >= from && block_size <= to) {
      worst = std::max(worst, seconds);
    }
  }
  const double times = worst / Least(latency);
  return Claim(absl::StrCat(dataset.name, ", blocks of ", from, " to ", to, ", times the best"),
               absl::StrCat("the best (to ", FormatNumber(kAsGood), ")"),
               FormatNumber(times),
               times <= kAsGood);
}

absl::Status AddBlockSizes(const Dataset& dataset,
                           double guess,
                           int32_t best_to,
                           const FigureOptions& options,
                           Figure* figure,
                           ByBlockSize* latency) {
  absl::StatusOr<ByBlockSize> found = LatencyByBlockSize(dataset, guess, options);
  QUIRE_RETURN_IF_ERROR(found.status());
  *latency = *std::move(found);
  figure->rows.push_back(AsGoodRow(dataset, *latency, 16, best_to));
  Series series{.name = dataset.name};
  for (const auto& [block_size, seconds] : *latency) {
    series.points.emplace_back(block_size, seconds);
  }
  figure->plots.back().series.push_back(std::move(series));
  return absl::OkStatus();
}

double Milliseconds(BlockLayout layout, const Platform& platform, int32_t block_size) {
  return 1000 * SwapSeconds(platform, layout, block_size, kSwappedTokens);
}

}  // namespace

absl::StatusOr<Figure> MakeFig18(const FigureOptions& options) {
  Figure figure{.title = "Fig 18b: block size and latency (OPT-13B, 0.9 of the sustained rate)"};
  figure.plots.push_back({.file_name = "fig18b",
                          .title = figure.title,
                          .x_label = "tokens in a block",
                          .y_label = "s/token, mean",
                          .has_log_x = true});
  ByBlockSize latency;
  QUIRE_RETURN_IF_ERROR(AddBlockSizes(ShareGptDataset(), 1.9, 128, options, &figure, &latency));
  QUIRE_RETURN_IF_ERROR(AddBlockSizes(AlpacaDataset(), 28, 32, options, &figure, &latency));
  for (int32_t block_size : {128, 256}) {
    const double times = latency.at(block_size) / Least(latency);
    figure.rows.push_back(
        Claim(absl::StrCat("Alpaca-like, blocks of ", block_size, ", times the best"),
              absl::StrCat("sharply worse (from ", FormatNumber(kMuchWorse), ")"),
              FormatNumber(times),
              times >= kMuchWorse));
  }
  return figure;
}

absl::StatusOr<Figure> MakeFig19(const FigureOptions& /*options*/) {
  const Platform platform = ConfigFor(kOpt13B, MemoryPolicy::kPaged).platform;
  Figure figure{.title = "Fig 19: preempting 256 tokens and bringing them back (OPT-13B)"};
  Plot plot{.file_name = "fig19",
            .title = figure.title,
            .x_label = "tokens in a block",
            .y_label = "ms",
            .has_log_x = true,
            .series = {
                {.name = "swap, by layers"}, {.name = "swap, block-major"}, {.name = "recompute"}}};
  for (int32_t block_size : kBlockSizes) {
    plot.series[0].points.emplace_back(
        block_size, Milliseconds(BlockLayout::kLayerMajor, platform, block_size));
    plot.series[1].points.emplace_back(
        block_size, Milliseconds(BlockLayout::kBlockMajor, platform, block_size));
    plot.series[2].points.emplace_back(
        block_size, 1000 * RecomputeSeconds(platform, block_size, kSwappedTokens));
  }
  const auto& by_layers = plot.series[0].points;
  const auto& block_major = plot.series[1].points;
  const auto& recompute = plot.series[2].points;
  figure.rows.push_back(
      WithinPercent("swap by layers, B = 1, ms (read off)", 135, by_layers.front().second, 25));
  figure.rows.push_back(
      WithinRange("swap by layers, B = 256, ms (read off)", 10, 20, by_layers.back().second));
  figure.rows.push_back(
      WithinRange("recompute, B = 16, ms (read off)", 20, 30, recompute[4].second));
  const double recompute_change = recompute.front().second / recompute.back().second;
  figure.rows.push_back(Claim("recompute, B = 1 over B = 256",
                              "flat (to 1.1)",
                              FormatNumber(recompute_change),
                              recompute_change <= 1.1));
  const double swap_change = block_major.front().second / block_major.back().second;
  figure.rows.push_back(Claim("block-major swap, B = 1 over B = 256",
                              "at most 2 (our target)",
                              FormatNumber(swap_change),
                              swap_change <= 2));
  figure.rows.push_back(Shown("block-major swap, B = 1, ms", block_major.front().second));
  figure.rows.push_back(Shown("block-major swap, B = 16, ms", block_major[4].second));
  figure.plots.push_back(std::move(plot));
  return figure;
}

}  // namespace quire
