// KvMemory reports to operators how one rank's worker keeps KV blocks.
//
// Thread safety: value types.
#ifndef QUIRE_COMMON_STEP_KV_MEMORY_H_
#define QUIRE_COMMON_STEP_KV_MEMORY_H_

#include <cstdint>
#include <optional>

namespace quire {

// The way that attention finds a sequence's blocks.
enum class KvBackend : uint8_t {
  kPaged,  // through a block table
  kVmm,    // contiguous in virtual memory: a window of places, each of which maps a block
};

struct KvMemory {
  std::optional<KvBackend> backend;   // nullopt: not reported, or unknown to this build
  int64_t page_bytes = 0;             // a block's bytes are a multiple of this; 0: no windows
  int64_t padding_bytes = 0;          // bytes of each block that only fill up its last page
  int64_t num_places = 0;             // places that map a block now
  std::optional<int64_t> max_places;  // most places mapped at once; nullopt: no limit

  friend bool operator==(const KvMemory&, const KvMemory&) = default;
};

}  // namespace quire

#endif  // QUIRE_COMMON_STEP_KV_MEMORY_H_
