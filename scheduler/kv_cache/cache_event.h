// CacheEvent reports that the prefix cache lists more blocks, or fewer. A receiver that applies a
// scheduler's events in order knows which cached blocks new requests can share. Blocks that only
// the sequences of one request share are not reported.
//
// Thread safety: a value type.
#ifndef QUIRE_SCHEDULER_KV_CACHE_CACHE_EVENT_H_
#define QUIRE_SCHEDULER_KV_CACHE_CACHE_EVENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "scheduler/kv_cache/block_hash.h"

namespace quire {

struct CacheEvent {
  enum class Kind : uint8_t {
    kStored,   // the prefix cache now lists the blocks
    kRemoved,  // the prefix cache no longer lists the blocks
    kCleared,  // the prefix cache is empty
  };

  Kind kind = Kind::kCleared;
  std::vector<BlockHash> block_hashes;  // kStored: consecutive blocks of a sequence
  // The fields below are set for kStored only.
  std::optional<BlockHash> parent;  // hash of the block before the first one; nullopt: none
  std::vector<TokenId> token_ids;   // tokens of all the blocks, in order
  std::string cache_salt;
  int32_t sliding_window = 0;  // of the model, in tokens; 0: none
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_KV_CACHE_CACHE_EVENT_H_
