// ChoosePanelGroups divides the panels of a linear layer into tasks: a task is a block of rows
// times a group of panels. It affects only which thread computes what, and is the same on every
// path.
//
// Thread safety: a free function.
#ifndef QUIRE_KERNELS_CPU_LINEAR_GROUPS_H_
#define QUIRE_KERNELS_CPU_LINEAR_GROUPS_H_

#include <cstdint>

namespace quire {

// The work of one call.
struct PanelWork {
  int64_t num_panels = 0;
  int64_t num_blocks = 0;            // of rows
  int64_t operations = 0;            // of the whole call
  int64_t rest_bytes_per_panel = 0;  // if a task keeps the sums of all its panels at once, else 0
  int num_threads = 1;
  int tasks_per_thread = 4;
};

struct PanelGroups {
  int64_t panels_per_group = 1;
  int64_t num_groups = 1;
};

// Makes a few times as many tasks as threads, so that a descheduled thread delays little. No task
// is too small to be worth handing out, and no task's sums take more than a few MiB.
PanelGroups ChoosePanelGroups(const PanelWork& work);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_LINEAR_GROUPS_H_
