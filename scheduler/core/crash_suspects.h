// CrashSuspects finds the request that crashes its workers, among many that were lost with it.
//
// A crash leaves a place behind for each sequence that was to be computed: those tokens of its
// slice that were never computed before. When workers crash again before the sequence has computed
// its place, and were about to compute some of it, the crash counts for the place, and what they
// were about to compute belongs to it from then on. Sequences of a request compute the same prompt
// in turns, so a crash adds to the worst of its places that it overlaps. A request has crashed as
// often as the worst of its places.
//
//   crashes   the request
//   1         goes on with the others
//   2 to 4    is a suspect: it must be computed alone, one suspect at a time, and who has crashed
//             the fewest times first
//   5         has crashed its workers three times alone, and must end
//
// A crash among tokens before a place, on the way to it again, does not count, and the place is not
// forgotten for it: it begins there from then on.
//
// A request that computes its places is cleared. So an innocent one is, as soon as it is computed
// without the guilty one. Kills from outside look the same. They end somebody only when they come
// so fast that no suspect is cleared in between, and 3 + 2 * suspects of them do: each crash meets
// another suspect.
//
// Only a loss that a request can have caused is a crash: see SchedulerCore::BeginEpoch. It is
// judged when the next workers are there, since not before is it known whether a process has died
// or only the way to it was cut. No step is planned in between, so the suspects are known in time.
//
// Tokens of a slice that were computed before, and lost with the workers, are a place of their own.
// A crash there counts too, but takes nothing from what is known of new tokens.
//
// Thread safety: not thread-safe; owned by CoreState.
// Invariants:    suspects() are those of records() that crashed twice or more.
// Units:         positions of tokens in their sequence, prompt and output, from 0.
// Cost:          O(slices log slices) a crash; OnComputed O(1) while nobody is recorded, else O(log
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

// How often a request has crashed its workers when it ends for that.
inline constexpr int32_t kMaxCrashes = 5;

// Tokens [begin, end) of a sequence, which the workers were computing.
struct LostSlice {
  RequestId id;
  int32_t sequence_index = 0;
  int32_t begin = 0;
  int32_t end = 0;
  int32_t num_computed_ever = 0;  // the most of its tokens, in steps that were answered
};

class CrashSuspects {
 public:
  struct Place {
    int32_t begin = 0;
    int32_t end = 0;
    int32_t num_crashes = 1;
  };
  struct Evidence {
    std::map<int32_t, Place> places;  // by sequence

    // Of the place where most happened.
    int32_t num_crashes() const;
  };
  struct Record {
    Evidence of_new_tokens;
    Evidence of_old_tokens;  // computed before

    int32_t num_crashes() const;
    bool is_suspect() const;
  };

  // Workers crashed, and these were the slices of the step that they owe. Returns the requests that
  // must end, in order; they are forgotten. REQUIRES: a suspect's slices were alone.
  std::vector<RequestId> OnCrash(std::span<const LostSlice> slices);

  // The sequence's first num_tokens tokens are computed, as of a step that was answered.
  void OnComputed(RequestId id, int32_t sequence_index, int32_t num_tokens) {
    if (!records_.empty()) {
      Shrink(id, sequence_index, num_tokens);
    }
  }

  // The sequence, or the request, has ended.
  void Forget(RequestId id, int32_t sequence_index);
  void Forget(RequestId id);

  bool IsSuspect(RequestId id) const;
  // With their crashes, the fewest first, and of equals the older request.
  using Suspects = std::set<std::pair<int32_t, RequestId>>;
  const Suspects& suspects() const { return suspects_; }
  const std::map<RequestId, Record>& records() const { return records_; }

 private:
  void Shrink(RequestId id, int32_t sequence_index, int32_t num_tokens);
  // Clears the request, which had crashed so often before, if nothing speaks against it any more.
  void Reconsider(RequestId id, int32_t num_crashes_before);

  std::map<RequestId, Record> records_;
  Suspects suspects_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_CORE_CRASH_SUSPECTS_H_
