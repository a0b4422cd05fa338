// CacheEventAudit rebuilds the shared part of the prefix cache from cache events alone, and
// compares it with what the cache lists (I21). Each event must fit: hashes are those of its tokens,
// a stored block was not there, a removed one was.
//
// The cache also lists blocks that only the sequences of one request share. No event may tell of
// them, so the audit computes their hashes from the requests.
//
// Thread safety: for tests, one thread.
#ifndef QUIRE_TESTS_SCHEDULER_CORE_CACHE_EVENT_AUDIT_H_
#define QUIRE_TESTS_SCHEDULER_CORE_CACHE_EVENT_AUDIT_H_

#include <cstdint>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "scheduler/core/core_config.h"
#include "scheduler/kv_cache/cache_event.h"
#include "tests/scheduler/core/request_model.h"

namespace quire {

class CacheEventAudit {
 public:
  explicit CacheEventAudit(const CoreConfig& config) : config_(config) {}

  // Another scheduler begins, with an empty cache.
  void OnNewCore() { is_begun_ = false; }
  // Each function returns "" or the fault.
  std::string Apply(std::span<const CacheEvent> events, int32_t block_size_tokens);
  std::string Compare(std::span<const BlockHash> listed,
                      const RequestModels& requests,
                      int32_t block_size_tokens);

  int64_t num_stored() const { return num_stored_; }    // blocks
  int64_t num_removed() const { return num_removed_; }  // blocks
  int64_t num_private() const { return static_cast<int64_t>(private_.size()); }

 private:
  std::string ApplyStored(const CacheEvent& event, size_t block_size);
  void FindPrivate(const RequestModels& requests, size_t block_size);

  using HashSet = std::unordered_set<BlockHash, BlockHashHasher>;

  const CoreConfig config_;
  bool is_begun_ = false;  // the first event came
  HashSet shared_;         // as the events tell
  HashSet private_;        // hashes of the requests that share nothing
  bool has_private_beams_ = false;
  int64_t num_stored_ = 0;
  int64_t num_removed_ = 0;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_CORE_CACHE_EVENT_AUDIT_H_
