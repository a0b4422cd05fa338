#include "scheduler/core/crash_suspects.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace quire {
namespace {

// After one crash no request is suspected yet: the cause may be any request of the step, or a kill
// from outside.
constexpr int32_t kCrashesToSuspect = 2;

using Places = std::map<int32_t, CrashSuspects::Place>;

bool Overlap(const CrashSuspects::Place& a, const CrashSuspects::Place& b) {
  return std::max(a.begin, b.begin) < std::min(a.end, b.end);
}

// Returns the highest number of crashes among the places that overlap `place`.
int32_t MostCrashesAt(const CrashSuspects::Place& place, const Places& places) {
  int32_t most = 0;
  for (const auto& [sequence_index, other] : places) {
    most = Overlap(place, other) ? std::max(most, other.num_crashes) : most;
  }
  return most;
}

// Merges the slices of a lost step into the places of their request (crash_suspects.h). A slice
// that overlaps a place extends the place and never replaces it. Otherwise a smaller slice, lost to
// a kill from outside or to a crash by another request, could hide the tokens that crash the
// workers. When a request is recomputed, its sequences, beams especially, may run in another order,
// so another sequence may compute the same tokens. Therefore a slice is compared with all places of
// its request. The place's new crash count is one more than the highest count of the places that
// the slice overlaps.
void Add(const Places& lost, CrashSuspects::Evidence& evidence) {
  const Places before = evidence.places;
  for (const auto& [sequence_index, place] : lost) {
    CrashSuspects::Place& now = evidence.places[sequence_index];
    const auto own = before.find(sequence_index);
    if (own == before.end()) {
      now = place;
      now.num_crashes = MostCrashesAt(place, before) + 1;
    } else if (Overlap(place, own->second)) {
      now = {.begin = std::min(place.begin, own->second.begin),
             .end = std::max(place.end, own->second.end),
             .num_crashes = MostCrashesAt(place, before) + 1};
    } else if (place.end <= own->second.begin) {
      // The sequence was still recomputing tokens before its place. The place is kept, and extended
      // to begin with this slice, because the cause of the crash may also be in this slice.
      now.begin = place.begin;
    } else {
      // The slice lies after the old place. So one of the two crashes had another cause, and the
      // place starts anew.
      now = place;
    }
  }
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
}

}  // namespace

int32_t CrashSuspects::Evidence::num_crashes() const {
  int32_t most = 0;
  for (const auto& [sequence_index, place] : places) {
    most = std::max(most, place.num_crashes);
  }
  return most;
}

int32_t CrashSuspects::Record::num_crashes() const {
  return std::max(of_new_tokens.num_crashes(), of_old_tokens.num_crashes());
}

bool CrashSuspects::Record::is_suspect() const { return num_crashes() >= kCrashesToSuspect; }

std::vector<RequestId> CrashSuspects::OnCrash(std::span<const LostSlice> slices) {
  std::map<RequestId, std::pair<Places, Places>> lost;  // places of new and of old tokens
  for (const LostSlice& slice : slices) {
    auto& [new_places, old_places] = lost[slice.id];
    // Tokens below num_computed_ever may have come from the prefix cache. Then this sequence
    // computes them for the first time now, and that may be the cause. So both parts are recorded.
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
    const int32_t num_crashes_before = record.num_crashes();
    Add(places.first, record.of_new_tokens);
    Add(places.second, record.of_old_tokens);
    if (record.num_crashes() >= kMaxCrashes) {
      to_end.push_back(id);
    }
    Reconsider(id, num_crashes_before);
  }
  for (RequestId id : to_end) {
    Forget(id);
  }
  return to_end;
}

void CrashSuspects::Shrink(RequestId id, int32_t sequence_index, int32_t num_tokens) {
  auto record = records_.find(id);
  if (record != records_.end()) {
    const int32_t num_crashes_before = record->second.num_crashes();
    quire::Shrink(sequence_index, num_tokens, record->second.of_new_tokens);
    quire::Shrink(sequence_index, num_tokens, record->second.of_old_tokens);
    Reconsider(id, num_crashes_before);
  }
}

void CrashSuspects::Reconsider(RequestId id, int32_t num_crashes_before) {
  const Record& record = records_.at(id);
  suspects_.erase({num_crashes_before, id});
  if (record.of_new_tokens.places.empty() && record.of_old_tokens.places.empty()) {
    records_.erase(id);
  } else if (record.is_suspect()) {
    suspects_.emplace(record.num_crashes(), id);
  }
}

bool CrashSuspects::IsSuspect(RequestId id) const {
  const auto record = records_.find(id);
  return record != records_.end() && record->second.is_suspect();
}

void CrashSuspects::Forget(RequestId id, int32_t sequence_index) {
  OnComputed(id, sequence_index, std::numeric_limits<int32_t>::max());
}

void CrashSuspects::Forget(RequestId id) {
  const auto record = records_.find(id);
  if (record != records_.end()) {
    suspects_.erase({record->second.num_crashes(), id});
    records_.erase(record);
  }
}

}  // namespace quire
