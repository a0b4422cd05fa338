// Fig 15 of the PagedAttention paper, and the numbers of its section 6.3 for ShareGPT: blocks that
// are saved by sharing within a request.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "scheduler/sim/figure_runs.h"
#include "scheduler/sim/paper_figures.h"

namespace quire {
namespace {

// Rates far below saturation. They suffice, because the share of saved blocks does not depend on
// the rate.
constexpr double kAlpacaCalmRate = 2;
constexpr double kShareGptCalmRate = 0.2;
constexpr double kMinutes = 15;

// Percent of KV blocks that sharing saves on Alpaca, with `width` parallel sequences or beams.
struct Saving {
  int32_t width;
  double parallel;
  double beam;
};

constexpr Saving kPaperSavings[] = {{2, 6.09, 37.56}, {4, 8.53, 53.13}, {6, 9.79, 55.16}};

absl::StatusOr<double> SavedPercent(const LengthShape& lengths,
                                    double rate,
                                    int32_t num_sequences,
                                    int32_t num_beams,
                                    const FigureOptions& options) {
  SimConfig config = ConfigFor("a100-opt-13b", MemoryPolicy::kPaged);
  config.num_sequences = num_sequences;
  config.num_beams = num_beams;
  FigureOptions shorter = options;
  shorter.trace_minutes = std::min(options.trace_minutes, kMinutes);
  absl::StatusOr<SimResult> result =
      RunSimulation(config, PoissonTrace(TraceFor(lengths, rate, "a100-opt-13b", shorter)));
  QUIRE_RETURN_IF_ERROR(result.status());
  return 100 * result->mean_saved_share;
}

}  // namespace

absl::StatusOr<Figure> MakeFig15(const FigureOptions& options) {
  Figure figure{.title = "Fig 15: blocks saved by sharing within a request (OPT-13B)"};
  Plot plot{.file_name = "fig15",
            .title = figure.title,
            .x_label = "sequences or beams",
            .y_label = "% of the blocks without sharing"};
  plot.series = {{.name = "parallel, Alpaca-like"},
                 {.name = "paper"},
                 {.name = "beams, Alpaca-like"},
                 {.name = "paper"}};
  for (const Saving& paper : kPaperSavings) {
    const int32_t width = paper.width;
    QUIRE_ASSIGN_OR_RETURN(const double parallel,
                           SavedPercent(AlpacaLike(), kAlpacaCalmRate, width, 1, options));
    QUIRE_ASSIGN_OR_RETURN(const double beam,
                           SavedPercent(AlpacaLike(), kAlpacaCalmRate, 1, width, options));
    figure.rows.push_back(WithinPoints(
        absl::StrCat("parallel ", width, ", Alpaca-like, %"), paper.parallel, parallel, 1.5));
    figure.rows.push_back(
        WithinPoints(absl::StrCat("beam ", width, ", Alpaca-like, %"), paper.beam, beam, 1.5));
    QUIRE_ASSIGN_OR_RETURN(const double parallel_chat,
                           SavedPercent(ShareGptLike(), kShareGptCalmRate, width, 1, options));
    QUIRE_ASSIGN_OR_RETURN(const double beam_chat,
                           SavedPercent(ShareGptLike(), kShareGptCalmRate, 1, width, options));
    figure.rows.push_back(WithinRange(
        absl::StrCat("parallel ", width, ", ShareGPT-like, %"), 16.2, 30.5, parallel_chat));
    figure.rows.push_back(
        WithinRange(absl::StrCat("beam ", width, ", ShareGPT-like, %"), 44.3, 66.3, beam_chat));
    plot.series[0].points.emplace_back(width, parallel);
    plot.series[1].points.emplace_back(width, paper.parallel);
    plot.series[2].points.emplace_back(width, beam);
    plot.series[3].points.emplace_back(width, paper.beam);
  }
  figure.plots.push_back(std::move(plot));
  return figure;
}

}  // namespace quire
