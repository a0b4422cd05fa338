// ChoosePanelGroups divides a linear layer into tasks. A task computes the outputs of one block of
// rows in one group of panels (runs of columns, packed_linear.h). The division decides which thread
// computes an output, and changes no bit of it. All instruction sets use the same rule.
//
// Thread safety: any thread.
#ifndef QUIRE_KERNELS_CPU_LINEAR_GROUPS_H_
#define QUIRE_KERNELS_CPU_LINEAR_GROUPS_H_

#include <cstdint>

namespace quire {

// The work of one call.
struct PanelWork {
  int64_t num_panels = 0;
  int64_t num_blocks = 0;                   // blocks of rows
  int64_t operations = 0;                   // additions and multiplications of the whole call
  int64_t partial_sum_bytes_per_panel = 0;  // scratch memory of a task; 0: no partial sums
  int num_threads = 1;
  int tasks_per_thread = 4;
};

struct PanelGroups {
  int64_t panels_per_group = 1;
  int64_t num_groups = 1;
};

// Makes several tasks per thread, so that a descheduled thread delays only a small part of the
// work. Tasks have a minimum size, and a task's partial sums take at most a few MiB.
PanelGroups ChoosePanelGroups(const PanelWork& work);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_LINEAR_GROUPS_H_
