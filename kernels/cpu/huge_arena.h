// HugeArena is memory in huge pages for what stays: what is taken lies one behind the other, so
// that only the end of it all fills a page in part. Packed weights are read from one end to the
// other in every step, and large pages save most of the page-table walks. A page for each matrix
// would add as much as a megabyte to it, which is a lot for a rank's part of one.
//
// Thread safety: one caller at a time. What was taken may outlive the arena.
// Cost:          memory is mapped 64 MiB at a time, and becomes real when it is written.
#ifndef QUIRE_KERNELS_CPU_HUGE_ARENA_H_
#define QUIRE_KERNELS_CPU_HUGE_ARENA_H_

#include <cstddef>
#include <memory>

namespace quire {

class HugeArena {
 public:
  static constexpr size_t kAlignment = 64;

  // What taking so much takes of memory.
  static size_t TakenBytes(size_t bytes);

  // At a multiple of kAlignment; given back when all that lies beside it is. Null when there is no
  // memory.
  std::shared_ptr<std::byte> Take(size_t bytes);

 private:
  std::shared_ptr<std::byte> chunk_;
  size_t used_bytes_ = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_HUGE_ARENA_H_
