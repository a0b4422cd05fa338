// CrashSuspects finds the request that crashes its workers, among many that were lost with it.
//
// A crash records a place for each sequence of the lost step: the tokens of its slice that were
// never computed before. A later crash counts for the place if its slice overlaps the place and the
// sequence has not computed the place since. The place then grows by that slice. Sequences of a
// request may compute the same tokens in turns, so the new count is one more than the highest count
// of any overlapping place of the request. The count of a request is that of its worst place.
//
//   crashes   the request
//   1         goes on with the others
//   2 to 4    is a suspect: it is computed alone, one suspect at a time, the one with the fewest
//             crashes first
//   5         has crashed its workers three times alone, and must end
//
// A crash at tokens before a place, while they are recomputed, does not count. The place is kept,
// and from then on begins with that slice.
//
// A request is cleared when it has computed its places. So an innocent request is cleared as soon
// as it is computed without the guilty one. Kills of workers from outside look like crashes. They
// end a request only if no suspect is cleared between them, and then only after 3 + 2 * suspects
// kills, because each kill hits another suspect.
//
// Only a loss that a request can have caused is a crash: see SchedulerCore::BeginEpoch. The loss is
// judged when the next workers are ready: only then is it known whether a process died or was only
// cut off. No step is planned in between, so the suspects are known in time.
//
// Tokens of a slice that were computed before, and lost with the workers, are a separate place. A
// crash there counts too, but does not change the place of new tokens.
//
// Thread safety: not thread-safe; owned by CoreState.
// Invariants:    suspects() are the records() with two crashes or more.
// Units:         positions of tokens in their sequence, prompt and output, from 0.
// Cost:          O(slices log slices) a crash; OnComputed O(1) without records, else O(log
//                records). A record takes about 200 bytes, until its request has computed its
//                place.
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

// Crashes after which a request ends: two beside others, three alone.
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
  struct Place {
    int32_t begin = 0;
    int32_t end = 0;
    int32_t num_crashes = 1;
  };
  struct Evidence {
    std::map<int32_t, Place> places;  // by sequence_index

    // Crashes of the worst place.
    int32_t num_crashes() const;
  };
  struct Record {
    Evidence of_new_tokens;
    Evidence of_old_tokens;  // tokens that were computed before

    int32_t num_crashes() const;
    bool is_suspect() const;
  };

  // Workers crashed in a step of these slices. Returns the requests that must end, in order of id,
  // and forgets them. REQUIRES: a suspect was alone in the step.
  std::vector<RequestId> OnCrash(std::span<const LostSlice> slices);

  // An answered step has computed the first num_tokens tokens of the sequence.
  void OnComputed(RequestId id, int32_t sequence_index, int32_t num_tokens) {
    if (!records_.empty()) {
      Shrink(id, sequence_index, num_tokens);
    }
  }

  void Forget(RequestId id, int32_t sequence_index);  // the sequence has ended
  void Forget(RequestId id);                          // the request has ended

  bool IsSuspect(RequestId id) const;
  // Suspects with their numbers of crashes: the fewest first, then the older request.
  using Suspects = std::set<std::pair<int32_t, RequestId>>;
  const Suspects& suspects() const { return suspects_; }
  const std::map<RequestId, Record>& records() const { return records_; }

 private:
  void Shrink(RequestId id, int32_t sequence_index, int32_t num_tokens);
  // Updates the suspects after a change of the record, and drops it if no place is left.
  void Reconsider(RequestId id, int32_t num_crashes_before);

  std::map<RequestId, Record> records_;
  Suspects suspects_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_CRASH_SUSPECTS_H_
