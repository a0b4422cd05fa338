// HugeArena gives out long-lived memory in huge pages, for packed weights. Weights are read from
// end to end in every step, and huge pages save most of the page-table walks. Small pieces lie one
// directly behind another and share pages. Separate pages of 2 MiB would waste about a megabyte per
// matrix, which is much compared with a small model's matrix, or with a rank's part of a matrix.
//
// Thread safety: one caller at a time. Memory taken may outlive the arena.
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

  // Returns memory aligned to kAlignment, or null if there is none. A piece of up to 16 MiB is
  // taken from a shared chunk of 64 MiB; a larger piece gets a separate chunk. A chunk is freed
  // when the last pointer to one of its pieces is gone, and the arena no longer takes pieces from
  // the chunk.
  std::shared_ptr<std::byte> Take(size_t bytes);

 private:
  std::shared_ptr<std::byte> chunk_;
  size_t used_bytes_ = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_HUGE_ARENA_H_
