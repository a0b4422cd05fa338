// KvMemory reports to operators how one rank's worker keeps KV blocks.
//
// Thread safety: value types.
#ifndef QUIRE_COMMON_STEP_KV_MEMORY_H_
#define QUIRE_COMMON_STEP_KV_MEMORY_H_

#include <cstdint>
#include <optional>

namespace quire {

// How attention finds a sequence's blocks.
enum class KvBackend : uint8_t {
  kPaged,  // through a block table
  kVmm,    // through a window: contiguous virtual memory, made of places that each map a block
};

struct KvMemory {
  std::optional<KvBackend> backend;  // nullopt: not reported, or unknown to this build
  // Page size of windows: a block fills whole pages, or a page holds whole blocks. 0: no windows.
  int64_t page_bytes = 0;
  int64_t padding_bytes = 0;  // bytes of each block that only fill up its page
  int64_t num_places = 0;     // places of windows to which a block (or page of blocks) is mapped
  std::optional<int64_t> max_places;  // upper bound on num_places; nullopt: no bound

  friend bool operator==(const KvMemory&, const KvMemory&) = default;
};

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_KV_MEMORY_H_
