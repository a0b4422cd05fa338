// CrashSuspects finds out which of the requests in a lost step crashes the workers.
//
// A crash records a suspect range for each sequence of the lost step. The range is the sequence's
// slice (the tokens that the step computes for it), without tokens that were ever computed before.
// Each range has a count of crashes. A later crash counts against the range if the sequence's slice
// in that crash overlaps the range, and the range was not computed in between. The range then grows
// by that slice. After a crash, another sequence of the request may compute the same tokens. So the
// slice is compared with all ranges of its request: the new count is one more than the highest
// count of the overlapped ranges. The count of a request is the highest count of its ranges.
//
//   crashes   the request
//   1         goes on beside other requests
//   2 to 4    is a suspect: it is computed alone, one suspect at a time, the one with the fewest
//             crashes first
//   5         has crashed its workers three times alone, and must end
//
// A crash while tokens before a range are recomputed does not count against the range. The range is
// kept, and extended so that it begins where the slice of that crash begins.
//
// A request is cleared when it has computed its ranges. So an innocent request is cleared as soon
// as it is computed without the guilty request. Kills of workers from outside look like crashes.
// Such kills end a request only if no suspect is cleared between two kills, and if there are at
// least 3 + 2 * (number of suspects) kills. The first 2 kills make the requests suspects. Later
// kills then count against the suspects in turn: after 2 kills for each suspect, 1 more kill ends a
// request.
//
// A loss of workers counts as a crash only if a request can have caused it: see
// SchedulerCore::BeginEpoch. The loss is judged when the next workers are ready, because only then
// is it known whether a process died or only lost its connection. No step is planned before that.
//
// The tokens of a slice that were computed before and lost get a separate range. A crash whose
// slice overlaps that range counts against the request too, but does not change the range of the
// new tokens.
//
// Thread safety: not thread-safe; owned by CoreState.
// Invariants:    suspects() are the records() with two crashes or more.
// Units:         positions of tokens in their sequence, prompt and output, from 0.
// Cost:          O(slices log slices) a crash; OnComputed O(1) without records, else O(log
//                records). A record takes about 200 bytes, and is kept until its request has
//                computed its ranges.
#ifndef QUIRE_SCHEDULER_CORE_CRASH_SUSPECTS_H_
#define QUIRE_SCHEDULER_CORE_CRASH_SUSPECTS_H_

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "common/base/ids.h"

namespace quire {

// Number of crashes after which a request ends: two beside other requests, three alone.
inline constexpr int32_t kMaxCrashes = 5;

// Tokens [begin, end) of a sequence that the workers were computing.
struct LostSlice {
  RequestId id;
  int32_t sequence_index = 0;
  int32_t begin = 0;
  int32_t end = 0;
  int32_t num_computed_ever = 0;  // see Sequence::num_tokens_computed_ever
};

class CrashSuspects {
 public:
  // Tokens [begin, end) of a sequence, one of which may crash the workers.
  struct SuspectRange {
    int32_t begin = 0;
    int32_t end = 0;
    int32_t num_crashes = 1;
  };
  struct Evidence {
    std::map<int32_t, SuspectRange> ranges;  // keyed by sequence_index

    // Returns the highest crash count of any range.
    int32_t num_crashes() const;
  };
  struct Record {
    Evidence of_new_tokens;
    Evidence of_old_tokens;  // tokens that were computed before

    int32_t num_crashes() const;
    bool is_suspect() const;
  };

  // Called when workers crashed in a step that had these slices. Returns the requests that must
  // end, in order of id, and forgets their records. REQUIRES: if one of the requests was a suspect,
  // the step had no other request.
  std::vector<RequestId> OnCrash(std::span<const LostSlice> slices);

  // Called when an answered step has computed the first num_tokens tokens of the sequence.
  void OnComputed(RequestId id, int32_t sequence_index, int32_t num_tokens) {
    if (!records_.empty()) {
      Shrink(id, sequence_index, num_tokens);
    }
  }

  void Forget(RequestId id, int32_t sequence_index);  // called when the sequence has ended
  void Forget(RequestId id);                          // called when the request has ended

  bool IsSuspect(RequestId id) const;
  // Suspects by number of crashes, the fewest first; among equals the oldest request is first.
  using Suspects = std::set<std::pair<int32_t, RequestId>>;
  const Suspects& suspects() const { return suspects_; }
  const std::map<RequestId, Record>& records() const { return records_; }

 private:
  void Shrink(RequestId id, int32_t sequence_index, int32_t num_tokens);
  // Updates suspects_ after the request's record has changed, and drops a record without ranges.
  // num_crashes_before: the record's num_crashes() before the change.
  void Reconsider(RequestId id, int32_t num_crashes_before);

  std::map<RequestId, Record> records_;
  Suspects suspects_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_CRASH_SUSPECTS_H_
