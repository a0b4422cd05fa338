#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "scheduler/sim/paper_figures.h"
#include "scheduler/sim/vattention_rows.h"

namespace quire {

std::string NameOfPage(int64_t page_bytes) {
  return page_bytes < kMiB ? absl::StrCat(page_bytes / kKiB, " KB")
                           : absl::StrCat(page_bytes / kMiB, " MB");
}

std::string LabelOf(BlockLayout layout) {
  return layout == BlockLayout::kLayerMajor ? "layer-major" : "Quire, block-major";
}

FigureRow ShownText(std::string quantity, std::string ours) {
  return {.quantity = std::move(quantity), .paper = "-", .ours = std::move(ours), .rule = "-"};
}

absl::StatusOr<Figure> MakeVattention(const FigureOptions& options) {
  Figure figure{.title =
                    "vAttention: KV memory in windows of virtual memory (Yi-6B on one A100, "
                    "Llama-3-8B and Yi-34B on two)"};
  QUIRE_RETURN_IF_ERROR(AddMappedMemoryRows(&figure));
  QUIRE_RETURN_IF_ERROR(AddMappingTimeRows(options, &figure));
  return figure;
}

}  // namespace quire
