#include "tests/scheduler/core/cache_event_audit.h"

#include <cstddef>
#include <utility>

namespace quire {

std::string CacheEventAudit::Apply(std::span<const CacheEvent> events, int32_t block_size_tokens) {
  for (const CacheEvent& event : events) {
    if (!std::exchange(is_begun_, true) && event.kind != CacheEvent::Kind::kCleared) {
      return "the first event tells that the cache is empty";
    }
    switch (event.kind) {
      case CacheEvent::Kind::kCleared:
        shared_.clear();
        break;
      case CacheEvent::Kind::kStored:
        if (std::string fault = ApplyStored(event, static_cast<size_t>(block_size_tokens));
            !fault.empty()) {
          return fault;
        }
        break;
      case CacheEvent::Kind::kRemoved:
        for (const BlockHash& hash : event.block_hashes) {
          if (shared_.erase(hash) == 0) {
            return "a removed block was stored";
          }
          ++num_removed_;
        }
        break;
    }
  }
  return "";
}

std::string CacheEventAudit::ApplyStored(const CacheEvent& event, size_t block_size) {
  if (event.block_hashes.empty() ||
      event.token_ids.size() != event.block_hashes.size() * block_size) {
    return "a stored event has the tokens of its blocks";
  }
  const Hash128& key = config_.block_hash_key;
  BlockHash parent = event.parent.value_or(RootHash(key, event.cache_salt));
  std::span<const TokenId> tokens = event.token_ids;
  for (const BlockHash& hash : event.block_hashes) {
    parent = ChainHash(key, parent, tokens.first(block_size));
    tokens = tokens.subspan(block_size);
    if (hash != parent) {
      return "a stored block's hash follows from its parent and tokens";
    }
    if (!shared_.insert(hash).second) {
      return "a stored block was not stored before";
    }
    ++num_stored_;
  }
  return "";
}

std::string CacheEventAudit::Compare(std::span<const BlockHash> listed,
                                     const RequestModels& requests,
                                     int32_t block_size_tokens) {
  if (!config_.prefix_caching) {
    return shared_.empty() ? "" : "without prefix caching no block is shared";
  }
  size_t num_found = 0;
  bool has_looked = false;
  for (const BlockHash& hash : listed) {
    if (shared_.contains(hash)) {
      ++num_found;
      continue;
    }
    if (!private_.contains(hash) && !std::exchange(has_looked, true)) {
      FindPrivate(requests, static_cast<size_t>(block_size_tokens));
    }
    // The model does not know the tokens of beams before their search ends.
    if (!private_.contains(hash) && has_private_beams_) {
      private_.insert(hash);
    }
    if (!private_.contains(hash)) {
      return "an event told of each listed block";
    }
  }
  return num_found == shared_.size() ? "" : "each stored block is listed";
}

void CacheEventAudit::FindPrivate(const RequestModels& requests, size_t block_size) {
  const Hash128& key = config_.block_hash_key;
  has_private_beams_ = false;
  for (const auto& [id, model] : requests) {
    if (!model.request.bypasses_prefix_cache) {
      continue;
    }
    has_private_beams_ = has_private_beams_ || (model.is_beam_search() && !model.is_finished());
    for (const SequenceModel& sequence : model.sequences) {
      BlockHash parent = PrivateRootHash(key, model.request.id);
      const std::span<const TokenId> tokens = sequence.token_ids;
      for (size_t end = block_size; end <= tokens.size(); end += block_size) {
        parent = ChainHash(key, parent, tokens.subspan(end - block_size, block_size));
        private_.insert(parent);
      }
    }
  }
}

}  // namespace quire
