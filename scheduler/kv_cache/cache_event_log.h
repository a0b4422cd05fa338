// CacheEventLog turns changes of the prefix cache into cache events. It reports the removal of a
// block only if an event has reported the block as stored.
//
// Thread safety: not thread-safe; owned by KvCacheManager.
// Cost:          nothing until Keep is called; then O(tokens) for a listed block.
#ifndef QUIRE_SCHEDULER_KV_CACHE_CACHE_EVENT_LOG_H_
#define QUIRE_SCHEDULER_KV_CACHE_CACHE_EVENT_LOG_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "scheduler/kv_cache/block_hash.h"
#include "scheduler/kv_cache/cache_event.h"

namespace quire {

// The contents of blocks that other requests may share.
struct SharedContents {
  std::span<const TokenId> token_ids;
  std::string_view cache_salt;
};

class CacheEventLog {
 public:
  // Records events from now on. sliding_window: of the model; kStored events carry it. REQUIRES:
  // the prefix cache is empty.
  void Keep(int32_t num_blocks, int32_t sliding_window);
  bool is_kept() const { return !is_told_.empty(); }

  // Called when the prefix cache has listed the block under hashes[index]. contents: the tokens of
  // this block alone, and its cache salt.
  void OnListed(BlockId block_id,
                std::span<const BlockHash> hashes,
                size_t index,
                const SharedContents& contents);
  // Called when the prefix cache no longer lists the block under this hash.
  void OnUnlisted(BlockId block_id, const BlockHash& hash);

  // Returns the events since the last call, in order.
  std::vector<CacheEvent> Take() { return std::exchange(events_, {}); }

 private:
  std::vector<CacheEvent> events_;
  std::vector<bool> is_told_;  // by block id: kStored was reported for it; empty before Keep
  int32_t sliding_window_ = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_KV_CACHE_CACHE_EVENT_LOG_H_
