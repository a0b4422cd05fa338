// Fig 14 of the PagedAttention paper: the request rates that the systems serve when a request has
// several sequences or beams.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "scheduler/sim/figure_runs.h"
#include "scheduler/sim/paper_figures.h"
#include "scheduler/sim/throughput_panel.h"

namespace quire {
namespace {

constexpr char kPlatform[] = "a100-opt-13b";
constexpr int32_t kWidths[] = {2, 4, 6};

// Upper bound on a trace's length. Alpaca's requests are short, so a few minutes of trace already
// give thousands of steps.
constexpr double kMinutes = 5;

// Rate of vLLM divided by the rate of Orca (Oracle) for one sequence, from the paper's text.
constexpr double kPaperBasic = 1.3;
// Rate of vLLM divided by the rate of Orca (Oracle) for six beams, from the paper's text.
constexpr double kPaperBeam6 = 2.3;

absl::StatusOr<PolicyRates> RatesOf(int32_t num_sequences,
                                    int32_t num_beams,
                                    const FigureOptions& options,
                                    Figure* figure) {
  FigureOptions shorter = options;
  shorter.trace_minutes = std::min(options.trace_minutes, kMinutes);
  const std::string kind = num_beams > 1       ? absl::StrCat("beam-", num_beams)
                           : num_sequences > 1 ? absl::StrCat("parallel-", num_sequences)
                                               : "basic";
  ThroughputPanel panel{.file_name = absl::StrCat("fig14-", kind),
                        .title = absl::StrCat("Fig 14: ", kind, ", ", kPlatform, ", Alpaca-like"),
                        .platform = kPlatform,
                        .guess = 28.0 / std::max(num_sequences, num_beams),
                        .num_sequences = num_sequences,
                        .num_beams = num_beams};
  panel.trace_at_rate = [&](double rate) {
    return PoissonTrace(TraceFor(AlpacaLike(), rate, kPlatform, shorter));
  };
  return MakePanel(panel, figure);
}

void AddRows(const std::string& name, const PolicyRates& rates, Figure* figure) {
  figure->rows.push_back(Shown(absl::StrCat(name, ", requests/s"), rates.at(MemoryPolicy::kPaged)));
  for (MemoryPolicy policy : {MemoryPolicy::kOrcaPow2, MemoryPolicy::kOrcaMax}) {
    figure->rows.push_back(
        Shown(absl::StrCat(name, ", times ", LabelOf(policy)), PagedOver(rates, policy)));
  }
}

}  // namespace

absl::StatusOr<Figure> MakeFig14(const FigureOptions& options) {
  Figure figure{.title = "Fig 14: rates at 0.5 s a token, parallel sampling and beams (OPT-13B)"};
  QUIRE_ASSIGN_OR_RETURN(const PolicyRates basic, RatesOf(1, 1, options, &figure));
  const double over_oracle = PagedOver(basic, MemoryPolicy::kOrcaOracle);
  figure.rows.push_back(WithinPercent("basic, times Orca (Oracle)", kPaperBasic, over_oracle, 10));
  AddRows("basic", basic, &figure);
  double parallel_before = over_oracle;
  for (int32_t width : kWidths) {
    QUIRE_ASSIGN_OR_RETURN(const PolicyRates parallel, RatesOf(width, 1, options, &figure));
    QUIRE_ASSIGN_OR_RETURN(const PolicyRates beam, RatesOf(1, width, options, &figure));
    const double parallel_ratio = PagedOver(parallel, MemoryPolicy::kOrcaOracle);
    const double beam_ratio = PagedOver(beam, MemoryPolicy::kOrcaOracle);
    const std::string parallel_name = absl::StrCat("parallel ", width);
    const std::string beam_name = absl::StrCat("beam ", width);
    figure.rows.push_back(Claim(absl::StrCat(parallel_name, ", times Orca (Oracle)"),
                                "more than with fewer",
                                FormatNumber(parallel_ratio),
                                parallel_ratio > parallel_before));
    AddRows(parallel_name, parallel, &figure);
    figure.rows.push_back(Claim(absl::StrCat(beam_name, ", times Orca (Oracle)"),
                                "more than parallel",
                                FormatNumber(beam_ratio),
                                beam_ratio > parallel_ratio));
    if (width == 6) {
      figure.rows.push_back(
          WithinPercent("beam 6, times Orca (Oracle)", kPaperBeam6, beam_ratio, 10));
    }
    AddRows(beam_name, beam, &figure);
    parallel_before = parallel_ratio;
  }
  return figure;
}

}  // namespace quire
