// KvMemory says how the worker of one rank keeps KV blocks, for whoever operates the server.
//
// Thread safety: value types.
#ifndef QUIRE_COMMON_STEP_KV_MEMORY_H_
#define QUIRE_COMMON_STEP_KV_MEMORY_H_

#include <cstdint>
#include <optional>

namespace quire {

// How attention finds a sequence's blocks.
enum class KvBackend : uint8_t {
  kPaged,  // by a block table
  kVmm,    // one behind the other, in a window onto the pool: places, each of which shows a block
};

struct KvMemory {
  std::optional<KvBackend> backend;   // none: it does not say, or one that is unknown here
  int64_t page_bytes = 0;             // blocks are multiples of it; 0: there are no windows
  int64_t padding_bytes = 0;          // of each block, what fills its last page
  int64_t num_places = 0;             // that show a block now
  std::optional<int64_t> max_places;  // that may at once; none: all that there are

  friend bool operator==(const KvMemory&, const KvMemory&) = default;
};

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_KV_MEMORY_H_
