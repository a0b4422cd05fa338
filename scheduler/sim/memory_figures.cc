// Table 1, Fig 2 and Fig 13 of the PagedAttention paper: tokens that fit the memory, use of the
// memory, and number of requests that run.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "common/base/status_macros.h"
#include "scheduler/sim/figure_runs.h"
#include "scheduler/sim/paper_figures.h"

namespace quire {
namespace {

constexpr char kOpt13B[] = "a100-opt-13b";

// The rates of Fig 13.
constexpr double kShareGptRate = 2;
constexpr double kAlpacaRate = 30;

// Rates for Fig 2, for which the paper gives none. No system can serve these rates, so memory alone
// limits the batch.
constexpr double kShareGptOverload = 4;
constexpr double kAlpacaOverload = 120;
constexpr double kAlpacaOverloadMinutes = 15;  // long enough, since requests are short

// Returns n in thousands with one decimal, as the paper prints slots.
std::string Thousands(int32_t n) { return absl::StrFormat("%.1fK", n / 1000.0); }

// Percentages of the pool. -1: the paper gives no number.
struct MemoryShares {
  MemoryPolicy policy;
  double stored;
  double reserved;
  double internal;
  double external;
};

// The paper's shares in Fig 2. For vLLM the paper gives only the stored share.
constexpr MemoryShares kPaperShares[] = {
    {MemoryPolicy::kOrcaMax, 20.4, 13.3, 57.3, 8.9},
    {MemoryPolicy::kOrcaPow2, 26.8, 17.9, 13.6, 41.6},
    {MemoryPolicy::kOrcaOracle, 38.2, 25.2, -1, 36.6},
    {MemoryPolicy::kPaged, 96.3, -1, -1, -1},
};

struct BatchSize {
  MemoryPolicy policy;
  double share_gpt;
  double alpaca;
};

constexpr BatchSize kPaperBatches[] = {
    {MemoryPolicy::kOrcaMax, 7.00, 7.00},
    {MemoryPolicy::kOrcaPow2, 9.81, 43.24},
    {MemoryPolicy::kOrcaOracle, 13.62, 72.75},
    {MemoryPolicy::kPaged, 30.42, 132.44},
};

absl::StatusOr<SimResult> Run(MemoryPolicy policy,
                              const LengthShape& lengths,
                              double rate,
                              const FigureOptions& options) {
  return RunSimulation(ConfigFor(kOpt13B, policy),
                       PoissonTrace(TraceFor(lengths, rate, kOpt13B, options)));
}

absl::Status AddOverloadRow(MemoryPolicy policy,
                            const Dataset& dataset,
                            double rate,
                            const FigureOptions& options,
                            Figure* figure) {
  absl::StatusOr<SimResult> result = Run(policy, dataset.lengths, rate, options);
  QUIRE_RETURN_IF_ERROR(result.status());
  figure->rows.push_back(
      Shown(absl::StrCat(LabelOf(policy), ", ", dataset.name, ", overloaded (", rate, "/s)"),
            result->mean_batch));
  return absl::OkStatus();
}

void AddShare(Figure* figure, MemoryPolicy policy, const char* what, double paper, double ours) {
  const std::string quantity = absl::StrCat(LabelOf(policy), ", ", what, ", %");
  figure->rows.push_back(paper < 0 ? Shown(quantity, 100 * ours)
                                   : WithinPoints(quantity, paper, 100 * ours, 2));
}

}  // namespace

absl::StatusOr<Figure> MakeTable1(const FigureOptions& /*options*/) {
  struct Row {
    const char* platform;
    const char* slots;
  };
  constexpr Row kRows[] = {
      {kOpt13B, "15.7K"}, {"a100x4-opt-66b", "9.7K"}, {"a100x8-opt-175b", "60.1K"}};
  Figure figure{.title = "Table 1: tokens whose K and V fit the memory"};
  for (const Row& row : kRows) {
    const std::string ours =
        Thousands(ConfigFor(row.platform, MemoryPolicy::kPaged).platform.num_kv_slots());
    figure.rows.push_back(Claim(row.platform, row.slots, ours, ours == row.slots));
  }
  return figure;
}

absl::StatusOr<Figure> MakeFig2(const FigureOptions& options) {
  Figure figure{.title = "Fig 2: what the KV memory holds (OPT-13B, ShareGPT-like, overloaded)"};
  Plot plot{.file_name = "fig2",
            .title = figure.title,
            .x_label = "1 Max, 2 Pow2, 3 Oracle, 4 paged",
            .y_label = "% of the pool"};
  plot.series = {{.name = "tokens stored"},
                 {.name = "reserved"},
                 {.name = "internal waste"},
                 {.name = "free or lost"}};
  double x = 0;
  for (const MemoryShares& paper : kPaperShares) {
    absl::StatusOr<SimResult> result =
        Run(paper.policy, ShareGptLike(), kShareGptOverload, options);
    QUIRE_RETURN_IF_ERROR(result.status());
    const MemoryUse& ours = result->mean_memory;
    AddShare(&figure, paper.policy, "tokens stored", paper.stored, ours.stored);
    AddShare(&figure, paper.policy, "reserved", paper.reserved, ours.reserved);
    AddShare(&figure, paper.policy, "internal waste", paper.internal, ours.internal);
    AddShare(&figure, paper.policy, "free or lost", paper.external, ours.external);
    x += 1;
    plot.series[0].points.emplace_back(x, 100 * ours.stored);
    plot.series[1].points.emplace_back(x, 100 * ours.reserved);
    plot.series[2].points.emplace_back(x, 100 * ours.internal);
    plot.series[3].points.emplace_back(x, 100 * ours.external);
  }
  figure.plots.push_back(std::move(plot));
  return figure;
}

absl::StatusOr<Figure> MakeFig13(const FigureOptions& options) {
  Figure figure{.title = "Fig 13: requests in a batch, average (OPT-13B)"};
  Plot plot{.file_name = "fig13",
            .title = figure.title,
            .x_label = "1 Max, 2 Pow2, 3 Oracle, 4 paged",
            .y_label = "requests"};
  plot.series = {{.name = "ShareGPT-like, 2/s"},
                 {.name = "paper"},
                 {.name = "Alpaca-like, 30/s"},
                 {.name = "paper"}};
  double x = 0;
  for (const BatchSize& paper : kPaperBatches) {
    absl::StatusOr<SimResult> share_gpt = Run(paper.policy, ShareGptLike(), kShareGptRate, options);
    QUIRE_RETURN_IF_ERROR(share_gpt.status());
    absl::StatusOr<SimResult> alpaca = Run(paper.policy, AlpacaLike(), kAlpacaRate, options);
    QUIRE_RETURN_IF_ERROR(alpaca.status());
    const std::string label = LabelOf(paper.policy);
    figure.rows.push_back(WithinPercent(
        absl::StrCat(label, ", ShareGPT-like"), paper.share_gpt, share_gpt->mean_batch, 5));
    figure.rows.push_back(
        WithinPercent(absl::StrCat(label, ", Alpaca-like"), paper.alpaca, alpaca->mean_batch, 5));
    x += 1;
    plot.series[0].points.emplace_back(x, share_gpt->mean_batch);
    plot.series[1].points.emplace_back(x, paper.share_gpt);
    plot.series[2].points.emplace_back(x, alpaca->mean_batch);
    plot.series[3].points.emplace_back(x, paper.alpaca);
  }
  FigureOptions shorter = options;
  shorter.trace_minutes = std::min(options.trace_minutes, kAlpacaOverloadMinutes);
  for (const BatchSize& paper : kPaperBatches) {
    QUIRE_RETURN_IF_ERROR(
        AddOverloadRow(paper.policy, ShareGptDataset(), kShareGptOverload, options, &figure));
    QUIRE_RETURN_IF_ERROR(
        AddOverloadRow(paper.policy, AlpacaDataset(), kAlpacaOverload, shorter, &figure));
  }
  figure.plots.push_back(std::move(plot));
  return figure;
}

}  // namespace quire
