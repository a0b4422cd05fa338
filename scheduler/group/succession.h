// Succession decides when this scheduler, one of several, asks for the workers.
//
// A worker obeys its holder: the newest scheduler that asked for it (SchedulerClaim). Reports of
// the worker name the holder and the time since the worker last heard from the holder. A scheduler
// that has not asked is a standby while another scheduler holds the workers. The standby asks when
// some worker has not heard from the holder for `patience`: by then the holder computes nothing any
// more, since it needs all workers.
//
// A scheduler asks under a number (incarnation) above the holder's. A standby with a lower number
// first takes the holder's number + 1 + own_part_, so that no two standbys take the same.
//
// A holder that cannot reach a worker lets go: it takes a higher number without asking. Workers
// hear nothing more from its old number, so a standby that reaches all workers may ask. The former
// holder may ask first, since requests wait in it: a standby asks only when all workers have been
// there for `patience`.
//
// A holder that was cut off while all its workers were replaced may find that an older scheduler
// holds the new workers. It then waits like a standby.
//
// Thread safety: not thread-safe.
// Source:        fencing by growing numbers, as in Raft; the workers time the lease.
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
    // False: the first time, this scheduler takes the workers from an older holder without waiting.
    bool stands_by = true;
    int64_t patience_ns = 2 * kNanosPerSecond;
  };

  // `incarnation`: nanoseconds of the wall clock.
  Succession(int32_t num_ranks, uint64_t incarnation, const Settings& settings);

  // The number under which this scheduler asks; it only grows. Then links must be dialed anew.
  uint64_t incarnation() const { return incarnation_; }

  // Returns false if the number must come from a clock that is over a year ahead of this one.
  bool IsPossible(uint64_t holder_incarnation) const { return holder_incarnation <= max_; }

  // Takes a report of the rank's worker. Incarnation 0: the worker has no holder.
  void OnReport(int32_t rank, uint64_t holder_incarnation, int64_t silence_ns, Instant now);
  // The rank's link was closed: forgets the worker's reports, except the time since which the
  // worker has named its present holder.
  void Forget(int32_t rank);

  // Returns true if this scheduler has asked and a newer scheduler has asked since.
  bool IsOvertaken() const;
  // Gives up the claim to the workers.
  void StepBack() { has_asked_ = false; }

  // Returns the number of the scheduler that this scheduler waits for; nullopt if none.
  std::optional<uint64_t> WaitsFor() const;
  // Returns true if the other scheduler lives: some worker has heard from it after first naming it.
  bool DoesOtherLive(Instant now) const;

  enum class Verdict : uint8_t {
    kAsk,     // this scheduler is the holder from now on
    kWait,    // this scheduler waits for the other one, or for its own turn
    kRename,  // the incarnation has grown: dial anew and decide again
  };
  // REQUIRES: all workers are there, and each has reported since it was dialed.
  Verdict Decide(Instant now);

  bool has_asked() const { return has_asked_; }
  // Takes a higher number without asking. For a scheduler that has asked and cannot reach a worker.
  void LetGo();

 private:
  struct Holder {
    uint64_t incarnation = 0;
    int64_t silence_ns = 0;  // since a worker heard from it; in NewestHolder, the longest such time
  };

  struct Worker {
    std::optional<Holder> holder;  // as reported over the present link
    uint64_t named = 0;            // number of the last reported holder, over any link
    Instant named_since = 0;
    // This scheduler has asked over the present link. The last report may be older than that.
    bool is_asked = false;
  };

  Holder NewestHolder() const;
  // Returns the newest holder; nullopt if it is this scheduler, or a late report names its
  // predecessor.
  std::optional<Holder> Other() const;
  bool HaveAllReported() const;
  // Returns true if all workers are new since this scheduler asked, and have an older holder.
  bool AreWorkersReplaced() const;
  void TakeNumberAbove(uint64_t incarnation);

  const int64_t patience_ns_;
  const uint64_t max_;
  const uint64_t own_part_;
  bool stands_by_;
  uint64_t incarnation_;
  uint64_t last_asked_as_ = 0;
  bool has_asked_ = false;
  // This scheduler has waited for another holder since it last asked, so it waits for its turn.
  bool has_waited_ = false;
  // The newest holder when this scheduler's turn came: it need not wait for that holder again.
  uint64_t outwaited_ = 0;
  Instant outwaited_at_ = 0;
  std::vector<Worker> by_rank_;
  std::optional<Instant> all_are_there_since_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_SUCCESSION_H_
