// Succession decides when a scheduler asks for the workers, of several that may have them.
//
// A worker obeys the newest scheduler that asked (SchedulerClaim), and tells everybody who that is,
// its holder, and for how long it has heard nothing of it. A scheduler that has not asked waits
// while any other one holds the workers: it is a standby. It asks when some worker has not heard of
// the holder for `patience`: the holder needs all of them, so it computes nothing any more.
//
// A scheduler asks under a number above the holder's. A standby that began before the holder takes
// the next one, with a part of its own, so that no two standbys take the same.
//
// A holder that cannot reach a worker lets go: it takes the next number without asking, so that no
// worker hears the old one any more. A standby that reaches all of them may then ask. The holder
// has the first turn all the same, since its requests wait in it: a standby waits for `patience`
// once all workers are there.
//
// A holder whose workers were all replaced while it was cut off may find that an older scheduler
// has the new ones. It takes them back no more than a standby would.
//
// Thread safety: not thread-safe.
// Source:        fencing by numbers that grow, as in Raft; the lease is the workers' to count.
#ifndef QUIRE_SCHEDULER_GROUP_SUCCESSION_H_
#define QUIRE_SCHEDULER_GROUP_SUCCESSION_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/clock.h"

namespace quire {

class Succession {
 public:
  struct Settings {
    // False: it waits for no older holder, and takes the workers at once. The first time only.
    bool stands_by = true;
    int64_t patience_ns = 2 * kNanosPerSecond;
  };

  // `incarnation`: of a clock.
  Succession(int32_t num_ranks, uint64_t incarnation, const Settings& settings);

  // It only grows. Links are to be dialled anew when it has.
  uint64_t incarnation() const { return incarnation_; }

  // No clock that is less than a year ahead has given a holder this number.
  bool IsPossible(uint64_t holder_incarnation) const { return holder_incarnation <= max_; }

  // Takes the report of a rank's worker. 0: the worker has no holder.
  void OnReport(int32_t rank, uint64_t holder_incarnation, int64_t silence_ns, Instant now);
  // The link to the worker was given up: what it said is of before. Since when it has named its
  // holder is kept.
  void Forget(int32_t rank);

  // This scheduler has asked, and a newer one has since: it has the workers no more.
  bool IsOvertaken() const;
  // It leaves the workers to whoever has them.
  void StepBack() { has_asked_ = false; }

  // The other scheduler that this one waits for.
  std::optional<uint64_t> WaitsFor() const;
  // Whether a worker has heard of that one since it named it: it is not dead already.
  bool DoesOtherLive(Instant now) const;

  enum class Verdict : uint8_t {
    kAsk,     // the workers are this scheduler's from now on
    kWait,    // for the other one, or for its turn
    kRename,  // the incarnation has grown; to be decided again
  };
  // All workers are there, and each has reported since it was dialled.
  Verdict Decide(Instant now);

  bool has_asked() const { return has_asked_; }
  // Of a scheduler that has asked and cannot reach a worker.
  void LetGo();

 private:
  struct Holder {
    uint64_t incarnation = 0;
    int64_t silence_ns = 0;  // the longest of all ranks
  };

  struct Worker {
    std::optional<Holder> holder;  // as it said over the present link; nothing before
    uint64_t named = 0;            // its last holder, over any link
    Instant named_since = 0;
    bool is_asked = false;  // over the present link, so its report may be of before
  };

  Holder NewestHolder() const;
  // The newest one that is not this scheduler.
  std::optional<Holder> Other() const;
  bool HaveAllSpoken() const;
  // Each worker has an older scheduler, and is another process than this scheduler asked.
  bool AreWorkersReplaced() const;
  void TakeNumberAbove(uint64_t incarnation);

  const int64_t patience_ns_;
  const uint64_t max_;
  const uint64_t own_part_;
  bool stands_by_;
  uint64_t incarnation_;
  uint64_t last_asked_as_ = 0;
  bool has_asked_ = false;
  bool has_waited_ = false;  // since it asked last, and its turn has not come
  uint64_t outwaited_ = 0;   // the holder whose workers it has its turn for
  Instant outwaited_at_ = 0;
  std::vector<Worker> by_rank_;
  std::optional<Instant> all_are_there_since_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_SUCCESSION_H_
