// HugeArena allocates long-lived memory in huge pages, for packed weights. Weights are read from
// end to end in every step, and huge pages save most of the page-table walks. Small matrices share
// pages. If each matrix had its own pages of 2 MiB, about a megabyte per matrix would be wasted:
// much for a small model, or for a rank's part of a matrix.
//
// Thread safety: one caller at a time. Memory from Take may outlive the arena.
// Cost:          memory is mapped 64 MiB at a time, and becomes resident when it is written.
#ifndef QUIRE_KERNELS_CPU_HUGE_ARENA_H_
#define QUIRE_KERNELS_CPU_HUGE_ARENA_H_

#include <cstddef>
#include <memory>

namespace quire {

class HugeArena {
 public:
  static constexpr size_t kAlignment = 64;

  // Returns how much memory Take(bytes) uses.
  static size_t TakenBytes(size_t bytes);

  // Returns memory aligned to kAlignment, or null if memory is lacking. A piece of up to 16 MiB is
  // a part of a shared chunk of 64 MiB; a larger piece is a separate chunk. A chunk is freed when
  // no pointer to one of its pieces is left and the arena no longer allocates from it.
  std::shared_ptr<std::byte> Take(size_t bytes);

 private:
  std::shared_ptr<std::byte> chunk_;
  size_t used_bytes_ = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_HUGE_ARENA_H_
