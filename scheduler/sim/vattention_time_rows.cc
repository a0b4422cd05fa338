// Rows on the time that requests wait for vAttention's windows of virtual memory: Fig 10 and 11 of
// the vAttention paper, reclamation of pages, and Linux's limit on mappings.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "scheduler/sim/length_model.h"
#include "scheduler/sim/trace.h"
#include "scheduler/sim/vattention_rows.h"
#include "scheduler/sim/vattention_runs.h"

namespace quire {
namespace {

constexpr int32_t kSpikeBatch = 4;  // batch size in Fig 10
// Batch size so large that mapping one step ahead cannot hide the mapping time.
constexpr int32_t kLockstepBatch = 32;
constexpr int32_t kReclaimBatch = 8;
constexpr int32_t kReclaimRequests = 64;

// In Fig 10 a page of 2 MB holds 1,024 tokens, as with Llama-3-8B on one GPU.
WindowRunConfig SpikeConfig(BlockLayout layout, bool maps_ahead) {
  WindowRunConfig config = WindowConfigFor(kVattentionLlama, layout, kCudaPageBytes);
  config.platform.num_gpus = 1;
  config.platform.kv_pool_bytes /= 2;
  config.batch = kSpikeBatch;
  config.mapper.maps_ahead = maps_ahead;
  return config;
}

absl::Status AddDecodeWaits(Figure* figure) {
  QUIRE_ASSIGN_OR_RETURN(const DecodeWaits on_path,
                         MeasureDecodeWaits(SpikeConfig(BlockLayout::kLayerMajor, false)));
  QUIRE_ASSIGN_OR_RETURN(const DecodeWaits ahead,
                         MeasureDecodeWaits(SpikeConfig(BlockLayout::kLayerMajor, true)));
  QUIRE_ASSIGN_OR_RETURN(const DecodeWaits blocks,
                         MeasureDecodeWaits(SpikeConfig(BlockLayout::kBlockMajor, false)));
  figure->rows.push_back(
      WithinPercent("Fig 10, 4 requests, 2 MB, a decode step, ms", 25, on_path.usual_ms, 25));
  figure->rows.push_back(
      WithinPercent("Fig 10, a step that waits for its pages, ms", 41, on_path.waiting_ms, 25));
  figure->rows.push_back(WithinPercent("Fig 10, steps from one that waits to the next",
                                       1024,
                                       static_cast<double>(on_path.steps_apart),
                                       0));
  figure->rows.push_back(Claim("Fig 10, mapped ahead, longest wait, ms",
                               "hidden",
                               FormatNumber(ahead.longest_ms),
                               ahead.longest_ms == 0));
  const std::string label = LabelOf(BlockLayout::kBlockMajor);
  figure->rows.push_back(
      Shown(absl::StrCat(label, ", nothing ahead, a step that waits, ms"), blocks.waiting_ms));
  figure->rows.push_back(Shown(absl::StrCat(label, ", steps from one that waits to the next"),
                               static_cast<double>(blocks.steps_apart)));
  for (BlockLayout layout : kWindowLayouts) {
    WindowRunConfig config = WindowConfigFor(kVattentionLlama, layout, kCudaPageBytes);
    config.batch = kLockstepBatch;
    QUIRE_ASSIGN_OR_RETURN(const DecodeWaits waits, MeasureDecodeWaits(config));
    figure->rows.push_back(Shown(
        absl::StrCat(LabelOf(layout), ", 32 requests in lockstep, mapped ahead, longest wait, ms"),
        waits.longest_ms));
  }
  return absl::OkStatus();
}

absl::StatusOr<Series> PrefillSlowdowns(const VattentionModel& model, BlockLayout layout) {
  Series series{.name = absl::StrCat(model.name, ", ", LabelOf(layout))};
  for (int64_t page : kVattentionPages) {
    QUIRE_ASSIGN_OR_RETURN(
        const double percent,
        PrefillSlowdownPercent(WindowConfigFor(model.platform, layout, page), kVattentionPrompt));
    series.points.emplace_back(static_cast<double>(page) / kKiB, percent);
  }
  return series;
}

FigureRow PrefillRow(BlockLayout layout, int64_t page_bytes, double percent) {
  const std::string quantity = absl::StrCat(
      "Fig 11, ", LabelOf(layout), ", prefill of 16K longer at ", NameOfPage(page_bytes), ", %");
  if (layout != BlockLayout::kLayerMajor || page_bytes == 128 * kKiB) {
    return Shown(quantity, percent);
  }
  return WithinPoints(quantity, page_bytes == 64 * kKiB ? 15 : 3, percent, 2);
}

// Adds Fig 11. For each page size the paper gives one number, for an unnamed model. So a row
// compares this number with the highest number of our three models.
absl::Status AddPrefillSlowdowns(Figure* figure) {
  Plot plot{.file_name = "vattention-prefill",
            .title = "Fig 11: a prefill of 16K whose pages are mapped before it",
            .x_label = "page, KB",
            .y_label = "% longer",
            .has_log_x = true};
  for (BlockLayout layout : kWindowLayouts) {
    std::vector<double> most(std::size(kVattentionPages));
    for (const VattentionModel& model : kVattentionModels) {
      QUIRE_ASSIGN_OR_RETURN(Series series, PrefillSlowdowns(model, layout));
      for (size_t i = 0; i < most.size(); ++i) {
        most[i] = std::max(most[i], series.points[i].second);
      }
      plot.series.push_back(std::move(series));
    }
    for (size_t i = 0; i < most.size(); ++i) {
      figure->rows.push_back(PrefillRow(layout, kVattentionPages[i], most[i]));
    }
  }
  figure->plots.push_back(std::move(plot));
  return absl::OkStatus();
}

absl::Status AddReclamation(const FigureOptions& options, Figure* figure) {
  const Trace trace =
      OfflineTrace({.lengths = ArxivOnlineLike(), .seed = options.seed}, kReclaimRequests);
  for (BlockLayout layout : kWindowLayouts) {
    for (bool defers : {false, true}) {
      WindowRunConfig config = WindowConfigFor(kVattentionLlama, layout, kCudaPageBytes);
      config.batch = kReclaimBatch;
      config.mapper.defers_reclamation = defers;
      QUIRE_ASSIGN_OR_RETURN(const WindowRunResult result, ServeInWindows(config, trace.requests));
      const std::string name =
          absl::StrCat(LabelOf(layout), ", reclamation ", defers ? "deferred" : "at once");
      const double calls =
          static_cast<double>(result.counts.num_pages_on_path + result.counts.num_pages_ahead +
                              result.counts.num_pages_unmapped) /
          kReclaimRequests;
      figure->rows.push_back(
          Shown(absl::StrCat(name, ", pages mapped and unmapped a request"), calls));
      figure->rows.push_back(
          Shown(absl::StrCat(name, ", steps wait, ms a request"),
                static_cast<double>(result.counts.waited) / kNanosPerMilli / kReclaimRequests));
    }
  }
  return absl::OkStatus();
}

// Adds rows with the number of tokens that one process can map in main memory, with blocks of 16
// tokens. In the layer-major layout, a page is as large as one layer's K in a block.
void AddMapLimit(Figure* figure) {
  for (BlockLayout layout : kWindowLayouts) {
    for (const VattentionModel& model : kVattentionModels) {
      WindowRunConfig config = WindowConfigFor(model.platform, layout, 4 * kKiB);
      config.platform.num_gpus = 1;
      if (layout == BlockLayout::kLayerMajor) {
        config.page_bytes = int64_t{config.block_size_tokens} * config.platform.model.kv_size * 2;
      }
      const WindowShape shape =
          ShapeOfWindows(config.platform, layout, config.page_bytes, config.block_size_tokens);
      const int64_t tokens = kMaxMapCount / shape.mappings_per_group * shape.tokens_per_group;
      figure->rows.push_back(
          Shown(absl::StrCat(LabelOf(layout), ", ", model.name, ", tokens in 65,530 mappings"),
                static_cast<double>(tokens)));
    }
  }
}

}  // namespace

absl::Status AddMappingTimeRows(const FigureOptions& options, Figure* figure) {
  QUIRE_RETURN_IF_ERROR(AddDecodeWaits(figure));
  QUIRE_RETURN_IF_ERROR(AddPrefillSlowdowns(figure));
  QUIRE_RETURN_IF_ERROR(AddReclamation(options, figure));
  AddMapLimit(figure);
  return absl::OkStatus();
}

}  // namespace quire
