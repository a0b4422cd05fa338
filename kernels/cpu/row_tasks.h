// ForEachRow divides rows of equal cost among a thread team, in tasks of several rows if rows are
// short.
//
// Thread safety: as ThreadTeam::ParallelFor; fn runs on several threads at once.
#ifndef QUIRE_KERNELS_CPU_ROW_TASKS_H_
#define QUIRE_KERNELS_CPU_ROW_TASKS_H_

#include <cstdint>

#include "kernels/cpu/thread_team.h"

namespace quire {

// Calls fn(row) for each row in [0, num_rows). `width`: elements that fn touches in a row.
template <typename Fn>
void ForEachRow(int64_t num_rows, int64_t width, ThreadTeam& team, const Fn& fn) {
  constexpr int64_t kTaskElements = 16384;  // some microseconds of work
  const int64_t wanted = width < kTaskElements ? kTaskElements / (width < 1 ? 1 : width) : 1;
  const int64_t tasks = (num_rows + wanted - 1) / wanted;
  team.ParallelFor(tasks, [&](int64_t task, int /*thread*/) {
    const int64_t end = (task + 1) * wanted < num_rows ? (task + 1) * wanted : num_rows;
    for (int64_t row = task * wanted; row < end; ++row) {
      fn(row);
    }
  });
}

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_ROW_TASKS_H_
