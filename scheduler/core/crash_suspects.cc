#include "scheduler/core/crash_suspects.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace quire {
namespace {

// One crash may be anybody's, or nobody's: a kill from outside.
constexpr int32_t kCrashesToSuspect = 2;

using Places = std::map<int32_t, CrashSuspects::Place>;

// The places that are lost now and overlap those of before. Whole: one of the losses may have been
// a kill from outside. Sequences of a request, beams above all, take their turns in another order
// when they are recomputed: one that had no place is compared with all of them.
Places Overlapping(const Places& before, const Places& lost) {
  CrashSuspects::Place all = {.begin = std::numeric_limits<int32_t>::max(), .end = 0};
  for (const auto& [sequence_index, place] : before) {
    all = {.begin = std::min(all.begin, place.begin), .end = std::max(all.end, place.end)};
  }
  Places common;
  for (const auto& [sequence_index, place] : lost) {
    auto own = before.find(sequence_index);
    const CrashSuspects::Place& other = own == before.end() ? all : own->second;
    if (std::max(place.begin, other.begin) < std::min(place.end, other.end)) {
      common.emplace(sequence_index, place);
    }
  }
  return common;
}

void Add(Places lost, CrashSuspects::Evidence& evidence) {
  if (lost.empty()) {
    return;
  }
  Places common = Overlapping(evidence.places, lost);
  // Elsewhere it was something else, then or now.
  const bool is_elsewhere = common.empty();
  evidence.num_crashes = is_elsewhere ? 1 : evidence.num_crashes + 1;
  evidence.places = std::move(is_elsewhere ? lost : common);
}

void Shrink(int32_t sequence_index, int32_t num_tokens, CrashSuspects::Evidence& evidence) {
  auto place = evidence.places.find(sequence_index);
  if (place == evidence.places.end()) {
    return;
  }
  place->second.begin = std::max(place->second.begin, num_tokens);
  if (place->second.begin >= place->second.end) {
    evidence.places.erase(place);
  }
  if (evidence.places.empty()) {
    evidence.num_crashes = 0;
  }
}

}  // namespace

bool CrashSuspects::Record::is_suspect() const {
  return std::max(of_new_tokens.num_crashes, of_old_tokens.num_crashes) >= kCrashesToSuspect;
}

std::vector<RequestId> CrashSuspects::OnCrash(std::span<const LostSlice> slices) {
  std::map<RequestId, std::pair<Places, Places>> lost;  // new and old tokens
  for (const LostSlice& slice : slices) {
    auto& [new_places, old_places] = lost[slice.id];
    // "Ever computed" may have been found in the cache, and be what crashes: both parts are lost.
    if (slice.begin < slice.num_computed_ever) {
      old_places[slice.sequence_index] = {.begin = slice.begin,
                                          .end = std::min(slice.end, slice.num_computed_ever)};
    }
    if (slice.end > slice.num_computed_ever) {
      new_places[slice.sequence_index] = {.begin = slice.num_computed_ever, .end = slice.end};
    }
  }
  std::vector<RequestId> to_end;
  for (auto& [id, places] : lost) {
    Record& record = records_[id];
    Add(std::move(places.first), record.of_new_tokens);
    Add(std::move(places.second), record.of_old_tokens);
    if (std::max(record.of_new_tokens.num_crashes, record.of_old_tokens.num_crashes) >=
        kMaxCrashes) {
      to_end.push_back(id);
    }
    Reconsider(id);
  }
  for (RequestId id : to_end) {
    Forget(id);
  }
  return to_end;
}

void CrashSuspects::Shrink(RequestId id, int32_t sequence_index, int32_t num_tokens) {
  auto record = records_.find(id);
  if (record != records_.end()) {
    quire::Shrink(sequence_index, num_tokens, record->second.of_new_tokens);
    quire::Shrink(sequence_index, num_tokens, record->second.of_old_tokens);
    Reconsider(id);
  }
}

void CrashSuspects::Reconsider(RequestId id) {
  const Record& record = records_.at(id);
  if (record.of_new_tokens.places.empty() && record.of_old_tokens.places.empty()) {
    Forget(id);
  } else if (record.is_suspect()) {
    suspects_.insert(id);
  } else {
    suspects_.erase(id);
  }
}

void CrashSuspects::Forget(RequestId id, int32_t sequence_index) {
  OnComputed(id, sequence_index, std::numeric_limits<int32_t>::max());
}

void CrashSuspects::Forget(RequestId id) {
  records_.erase(id);
  suspects_.erase(id);
}

}  // namespace quire
