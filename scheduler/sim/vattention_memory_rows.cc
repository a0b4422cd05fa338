// Rows on mapped memory, from the vAttention paper's sections 4 and 5.1, Fig 6, and Tables 7 and 8.
// The paper maps the memory of each sequence into windows, which are ranges of virtual addresses.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "scheduler/sim/vattention_rows.h"
#include "scheduler/sim/vattention_runs.h"

namespace quire {
namespace {

constexpr int64_t kSmallestPage = kVattentionPages[0];

WindowShape ShapeOf(const VattentionModel& model,
                    BlockLayout layout,
                    int64_t page_bytes,
                    int32_t num_gpus) {
  WindowRunConfig config = WindowConfigFor(model.platform, layout, page_bytes);
  config.platform.num_gpus = num_gpus;
  return ShapeOfWindows(config.platform, layout, page_bytes, config.block_size_tokens);
}

void AddKvBytes(Figure* figure) {
  for (const VattentionModel& model : kVattentionModels) {
    const WindowRunConfig config =
        WindowConfigFor(model.platform, BlockLayout::kLayerMajor, kSmallestPage);
    const auto bytes = static_cast<double>(config.platform.model.kv_bytes_per_token());
    figure->rows.push_back(WithinPercent(absl::StrCat(model.name, ", K and V of a token, KB"),
                                         model.kv_kib_per_token,
                                         bytes / kKiB,
                                         0));
  }
}

// Adds the rows and the plot of Fig 6.
absl::Status AddNeededRates(Figure* figure) {
  Plot rates{.file_name = "vattention-needed",
             .title = "Fig 6: memory that decoding maps, 1,024 to 1,536 tokens",
             .x_label = "requests in a batch",
             .y_label = "MB/s on each GPU"};
  double most = 0;
  for (const VattentionModel& model : kVattentionModels) {
    QUIRE_ASSIGN_OR_RETURN(
        const std::vector<DecodePoint> points,
        SweepDecode(WindowConfigFor(model.platform, BlockLayout::kLayerMajor, kSmallestPage)));
    Series series{.name = model.name};
    double most_of_model = 0;
    for (const DecodePoint& point : points) {
      series.points.emplace_back(point.batch, point.mapped_bytes_per_s / 1e6);
      most_of_model = std::max(most_of_model, point.mapped_bytes_per_s / 1e6);
    }
    rates.series.push_back(std::move(series));
    figure->rows.push_back(
        Shown(absl::StrCat(model.name, ", decode maps at most, MB/s on each GPU"), most_of_model));
    figure->rows.push_back(
        WithinPercent(absl::StrCat(model.name, ", batch at which throughput saturates (near)"),
                      model.saturates_at,
                      SaturatingBatch(points),
                      25));
    most = std::max(most, most_of_model);
  }
  figure->rows.push_back(Claim(
      "decode maps at most, all models, MB/s", "at most 600", FormatNumber(most), most <= 600));
  figure->plots.push_back(std::move(rates));
  return absl::OkStatus();
}

// Adds the rows of Table 7.
absl::Status AddOfferedRates(Figure* figure) {
  for (int64_t page : kVattentionPages) {
    QUIRE_ASSIGN_OR_RETURN(
        const double rate,
        MappingRate(WindowConfigFor(kVattentionLlama, BlockLayout::kLayerMajor, page),
                    kVattentionPrompt));
    const std::string quantity =
        absl::StrCat("the driver maps, ", NameOfPage(page), " pages, GB/s on each GPU");
    figure->rows.push_back(page == kSmallestPage ? WithinPercent(quantity, 7.6, rate / 1e9, 10)
                                                 : Shown(quantity, rate / 1e9));
  }
  const WindowShape shape =
      ShapeOf(kVattentionModels[2], BlockLayout::kLayerMajor, kSmallestPage, 2);
  const Instant growth = shape.pages_per_group * CostOfPage(kSmallestPage).map;
  figure->rows.push_back(
      WithinPercent("Yi-34B, calls of one growth, layer-major", 120, shape.mappings_per_group, 0));
  figure->rows.push_back(WithinPercent(
      "Yi-34B, one growth takes, ms (about)", 1, static_cast<double>(growth) / kNanosPerMilli, 10));
  return absl::OkStatus();
}

// Adds the rows of Table 8 on the tokens that a group of pages holds.
void AddPageTokens(Figure* figure) {
  for (BlockLayout layout : kWindowLayouts) {
    for (const VattentionModel& model : kVattentionModels) {
      for (int64_t page : kVattentionPages) {
        const std::string ours = absl::StrCat(ShapeOf(model, layout, page, 1).tokens_per_group,
                                              ", ",
                                              ShapeOf(model, layout, page, 2).tokens_per_group);
        const bool is_of_paper = layout == BlockLayout::kLayerMajor && page == kSmallestPage;
        const std::string quantity = absl::StrCat(LabelOf(layout),
                                                  ", ",
                                                  model.name,
                                                  ", tokens of a growth, ",
                                                  NameOfPage(page),
                                                  ", 1 and 2 GPUs");
        figure->rows.push_back(
            is_of_paper
                ? Claim(quantity, model.tokens_per_page, ours, ours == model.tokens_per_page)
                : ShownText(quantity, ours));
      }
    }
  }
}

struct Range {
  double least = 1e9;
  double most = 0;
};

// Measures the most memory that a request wastes, for each model with one GPU and with two. Returns
// the range of these values, in MiB.
absl::StatusOr<Range> WorstWaste(BlockLayout layout, int64_t page_bytes) {
  Range waste;
  for (const VattentionModel& model : kVattentionModels) {
    for (int32_t num_gpus : {1, 2}) {
      WindowRunConfig config = WindowConfigFor(model.platform, layout, page_bytes);
      config.platform.num_gpus = num_gpus;
      QUIRE_ASSIGN_OR_RETURN(const int64_t bytes, WorstWasteBytes(config));
      waste.least = std::min(waste.least, static_cast<double>(bytes) / kMiB);
      waste.most = std::max(waste.most, static_cast<double>(bytes) / kMiB);
    }
  }
  return waste;
}

// Returns the row of Table 8 for a layout and a page size.
FigureRow WasteRow(BlockLayout layout, int64_t page_bytes, const Range& waste) {
  const std::string quantity =
      absl::StrCat(LabelOf(layout), ", worst waste of a request, ", NameOfPage(page_bytes), ", MB");
  const std::string ours =
      absl::StrCat(FormatNumber(waste.least), " to ", FormatNumber(waste.most));
  const bool is_small = page_bytes == kSmallestPage;
  if (layout == BlockLayout::kLayerMajor && (is_small || page_bytes == 256 * kKiB)) {
    const std::string paper = is_small ? "4 to 15" : "16 to 60";
    return Claim(quantity, paper, ours, ours == paper);
  }
  return ShownText(quantity, ours);
}

absl::Status AddWaste(Figure* figure) {
  for (BlockLayout layout : kWindowLayouts) {
    for (int64_t page : kVattentionPages) {
      QUIRE_ASSIGN_OR_RETURN(const Range waste, WorstWaste(layout, page));
      figure->rows.push_back(WasteRow(layout, page, waste));
    }
  }
  return absl::OkStatus();
}

// Adds the rows of section 5.1: the address space of Yi-34B-200K's windows on two GPUs, for 500
// requests of 200K tokens.
void AddAddresses(Figure* figure) {
  constexpr int64_t kTokens = 200'000;
  constexpr int64_t kRequests = 500;
  const WindowShape shape =
      ShapeOf(kVattentionModels[2], BlockLayout::kLayerMajor, kSmallestPage, 2);
  const int64_t window_bytes = kTokens * kSmallestPage / shape.tokens_per_group;
  figure->rows.push_back(WithinPercent("Yi-34B, addresses of a request in a window, MB",
                                       200,
                                       static_cast<double>(window_bytes) / 1e6,
                                       5));
  figure->rows.push_back(
      WithinPercent("Yi-34B, addresses of all windows, 500 requests, TB",
                    12,
                    static_cast<double>(window_bytes * kRequests * shape.pages_per_group) / 1e12,
                    5));
}

}  // namespace

absl::Status AddMappedMemoryRows(Figure* figure) {
  AddKvBytes(figure);
  QUIRE_RETURN_IF_ERROR(AddNeededRates(figure));
  QUIRE_RETURN_IF_ERROR(AddOfferedRates(figure));
  AddAddresses(figure);
  AddPageTokens(figure);
  return AddWaste(figure);
}

}  // namespace quire
