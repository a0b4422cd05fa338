#include "scheduler/sim/figure_runs.h"

#include <algorithm>

#include "common/base/check.h"

namespace quire {

Dataset ShareGptDataset() { return {.name = "ShareGPT-like", .lengths = ShareGptLike()}; }

Dataset AlpacaDataset() { return {.name = "Alpaca-like", .lengths = AlpacaLike()}; }

SimConfig ConfigFor(std::string_view platform, MemoryPolicy policy) {
  absl::StatusOr<Platform> found = FindPlatform(platform);
  QUIRE_CHECK(found.ok());
  return {.platform = *found, .policy = policy};
}

TraceOptions TraceFor(const LengthShape& lengths,
                      double requests_per_second,
                      std::string_view platform,
                      const FigureOptions& options) {
  const double minutes = platform == "a100x8-opt-175b" ? 15 : 60;
  return {.lengths = lengths,
          .requests_per_second = requests_per_second,
          .duration_s = 60 * std::min(minutes, options.trace_minutes),
          .seed = options.seed};
}

std::string LabelOf(MemoryPolicy policy) {
  switch (policy) {
    case MemoryPolicy::kPaged:
      return "Quire (paged)";
    case MemoryPolicy::kOrcaMax:
      return "Orca (Max)";
    case MemoryPolicy::kOrcaPow2:
      return "Orca (Pow2)";
    case MemoryPolicy::kOrcaOracle:
      return "Orca (Oracle)";
    case MemoryPolicy::kFasterTransformer:
      return "FasterTransformer";
  }
  return "";
}

}  // namespace quire
