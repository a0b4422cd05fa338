#include "worker/model/strip_cache.h"

#include <algorithm>
#include <utility>

namespace quire {

absl::StatusOr<StripCache::StripPtr> StripCache::Get(
    const Key& key, int64_t num_codes, const std::function<absl::StatusOr<WeightStrip>()>& load) {
  const std::shared_ptr<Entry> entry = EntryFor(key, num_codes);
  const MutexLock lock(entry->mutex);
  if (!entry->strip.has_value()) {
    absl::StatusOr<WeightStrip> loaded = load();
    if (loaded.ok()) {
      entry->strip = std::make_shared<const WeightStrip>(*std::move(loaded));
    } else {
      entry->strip = loaded.status();
    }
  }
  return *entry->strip;
}

std::shared_ptr<StripCache::Entry> StripCache::EntryFor(const Key& key, int64_t num_codes) {
  const MutexLock lock(mutex_);
  const auto found = std::find_if(
      recent_.begin(), recent_.end(), [&](const auto& entry) { return entry->key == key; });
  if (found != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, found);
    return recent_.front();
  }
  auto entry = std::make_shared<Entry>();
  entry->key = key;
  entry->num_codes = num_codes;
  recent_.push_front(entry);
  bytes_ += num_codes;
  while (bytes_ > kMaxBytes && recent_.size() > 1) {
    bytes_ -= recent_.back()->num_codes;
    recent_.pop_back();
  }
  return entry;
}

}  // namespace quire
