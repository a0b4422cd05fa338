#include "common/base/free_memory.h"

#include <malloc.h>

namespace quire {
namespace {

// glibc's initial M_MMAP_THRESHOLD. Setting the threshold, even to its initial value, makes it
// constant. Otherwise glibc would raise the threshold, up to 32 MiB, whenever a larger buffer is
// freed.
constexpr int kLargeBytes = 128 << 10;
constexpr int kMaxArenas = 2;

}  // namespace

void ConfigureMalloc() {
  // mallopt is not thread-safe; the program has no other threads yet.
  static_cast<void>(::mallopt(M_MMAP_THRESHOLD, kLargeBytes));  // NOLINT(concurrency-mt-unsafe)
  static_cast<void>(::mallopt(M_ARENA_MAX, kMaxArenas));        // NOLINT(concurrency-mt-unsafe)
}

void ReturnFreeMemory() { static_cast<void>(::malloc_trim(0)); }

}  // namespace quire
