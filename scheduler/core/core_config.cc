#include "scheduler/core/core_config.h"

namespace quire {

std::optional<PreemptionMode> ParsePreemptionMode(std::string_view name) {
  if (name == "recompute") {
    return PreemptionMode::kRecompute;
  }
  if (name == "swap") {
    return PreemptionMode::kSwap;
  }
  if (name == "auto") {
    return PreemptionMode::kAuto;
  }
  return std::nullopt;
}

}  // namespace quire
