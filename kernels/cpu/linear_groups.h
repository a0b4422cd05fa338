// ChoosePanelGroups shares the panels of a linear layer out to tasks: a task is a block of rows
// times a group of panels. It decides nothing but who computes what, and is the same on every path.
//
// Thread safety: a free function.
#ifndef QUIRE_KERNELS_CPU_LINEAR_GROUPS_H_
#define QUIRE_KERNELS_CPU_LINEAR_GROUPS_H_

#include <cstdint>

namespace quire {

// Of one call.
struct PanelWork {
  int64_t num_panels = 0;
  int64_t num_blocks = 0;            // of rows
  int64_t operations = 0;            // of all
  int64_t rest_bytes_per_panel = 0;  // where a task keeps sums of all its panels at a time, else 0
  int num_threads = 1;
  int tasks_per_thread = 4;
};

struct PanelGroups {
  int64_t panels_per_group = 1;
  int64_t num_groups = 1;
};

// Tasks a few times as many as threads, so that a thread that loses its core holds up little; but
// none too small to be worth handing over, and none whose sums take more than a few MiB.
PanelGroups ChoosePanelGroups(const PanelWork& work);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_LINEAR_GROUPS_H_
