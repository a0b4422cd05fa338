#include "scheduler/core/crash_suspects.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace quire {
namespace {

// After one crash no request is suspected yet: the cause may be any request of the step, or a kill
// from outside.
constexpr int32_t kCrashesToSuspect = 2;

using SuspectRanges = std::map<int32_t, CrashSuspects::SuspectRange>;

bool Overlap(const CrashSuspects::SuspectRange& a, const CrashSuspects::SuspectRange& b) {
  return std::max(a.begin, b.begin) < std::min(a.end, b.end);
}

// Returns the highest number of crashes among the ranges that overlap `range`.
int32_t MostCrashesIn(const CrashSuspects::SuspectRange& range, const SuspectRanges& ranges) {
  int32_t most = 0;
  for (const auto& [sequence_index, other] : ranges) {
    most = Overlap(range, other) ? std::max(most, other.num_crashes) : most;
  }
  return most;
}

// Merges the slices of a lost step into the ranges of their request (crash_suspects.h). A slice
// that overlaps a range extends the range, and never replaces it. Otherwise a kill from outside
// during a small slice would shrink the range, and could drop the tokens that crash the workers.
// When a request is recomputed, another of its sequences (especially another beam) may compute the
// same tokens. So a slice is compared with all ranges of its request. The new crash count is one
// more than the highest count of the overlapped ranges.
void Add(const SuspectRanges& lost, CrashSuspects::Evidence& evidence) {
  const SuspectRanges before = evidence.ranges;
  for (const auto& [sequence_index, range] : lost) {
    CrashSuspects::SuspectRange& now = evidence.ranges[sequence_index];
    const auto own = before.find(sequence_index);
    if (own == before.end()) {
      now = range;
      now.num_crashes = MostCrashesIn(range, before) + 1;
    } else if (Overlap(range, own->second)) {
      now = {.begin = std::min(range.begin, own->second.begin),
             .end = std::max(range.end, own->second.end),
             .num_crashes = MostCrashesIn(range, before) + 1};
    } else if (range.end <= own->second.begin) {
      // The sequence was still recomputing tokens before its range. The range is kept, and extended
      // to begin with this slice, because the cause of the crash may also be in this slice.
      now.begin = range.begin;
    } else {
      // The slice begins after the old range, so the sequence got past that range without a crash.
      // The slice replaces it.
      now = range;
    }
  }
}

void Shrink(int32_t sequence_index, int32_t num_tokens, CrashSuspects::Evidence& evidence) {
  auto range = evidence.ranges.find(sequence_index);
  if (range == evidence.ranges.end()) {
    return;
  }
  range->second.begin = std::max(range->second.begin, num_tokens);
  if (range->second.begin >= range->second.end) {
    evidence.ranges.erase(range);
  }
}

}  // namespace

int32_t CrashSuspects::Evidence::num_crashes() const {
  int32_t most = 0;
  for (const auto& [sequence_index, range] : ranges) {
    most = std::max(most, range.num_crashes);
  }
  return most;
}

int32_t CrashSuspects::Record::num_crashes() const {
  return std::max(of_new_tokens.num_crashes(), of_old_tokens.num_crashes());
}

bool CrashSuspects::Record::is_suspect() const { return num_crashes() >= kCrashesToSuspect; }

std::vector<RequestId> CrashSuspects::OnCrash(std::span<const LostSlice> slices) {
  std::map<RequestId, std::pair<SuspectRanges, SuspectRanges>>
      lost;  // ranges of new and of old tokens
  for (const LostSlice& slice : slices) {
    auto& [new_ranges, old_ranges] = lost[slice.id];
    // This sequence may have taken the tokens before num_computed_ever from the prefix cache, and
    // now compute them for the first time. So these tokens can be the cause too, and are also
    // recorded.
    if (slice.begin < slice.num_computed_ever) {
      old_ranges[slice.sequence_index] = {.begin = slice.begin,
                                          .end = std::min(slice.end, slice.num_computed_ever)};
    }
    if (slice.end > slice.num_computed_ever) {
      new_ranges[slice.sequence_index] = {.begin = slice.num_computed_ever, .end = slice.end};
    }
  }
  std::vector<RequestId> to_end;
  for (auto& [id, ranges] : lost) {
    Record& record = records_[id];
    const int32_t num_crashes_before = record.num_crashes();
    Add(ranges.first, record.of_new_tokens);
    Add(ranges.second, record.of_old_tokens);
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
  if (record.of_new_tokens.ranges.empty() && record.of_old_tokens.ranges.empty()) {
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
