#include "kernels/cpu/linear_groups.h"

#include <algorithm>

#include "common/base/math.h"

namespace quire {

PanelGroups ChoosePanelGroups(const PanelWork& work) {
  constexpr int64_t kMinTaskOperations = 200'000;
  // Bounds the scratch memory that each thread keeps for partial sums. Without this bound, a task
  // could have thousands of panels of the output matrix, each with its partial sums.
  constexpr int64_t kMaxPartialSumBytes = int64_t{4} << 20;
  int64_t groups = 1;
  if (work.num_threads > 1) {
    const int64_t wanted =
        DivCeil(int64_t{work.num_threads} * work.tasks_per_thread, work.num_blocks);
    const int64_t worthwhile = work.operations / kMinTaskOperations / work.num_blocks;
    groups = std::clamp<int64_t>(std::min(wanted, worthwhile), 1, work.num_panels);
  }
  int64_t panels = DivCeil(work.num_panels, groups);
  if (work.partial_sum_bytes_per_panel > 0) {
    panels = std::clamp<int64_t>(kMaxPartialSumBytes / work.partial_sum_bytes_per_panel, 1, panels);
  }
  return {.panels_per_group = panels, .num_groups = DivCeil(work.num_panels, panels)};
}

}  // namespace quire
