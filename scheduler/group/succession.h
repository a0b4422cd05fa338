// Succession decides when this scheduler, one of several, asks for the workers.
//
// A worker obeys the newest scheduler that asked for it (SchedulerClaim), its holder. Its reports
// name the holder and the time since it last heard of it. A scheduler that has not asked is a
// standby while another one holds the workers. It asks when some worker has not heard of the holder
// for `patience`: the holder needs all workers, so it computes nothing any more.
//
// A scheduler asks under a number above the holder's. A standby with a lower number takes the next
// one plus its own part (own_part_), so that no two standbys take the same.
//
// A holder that cannot reach a worker lets go: it takes a higher number without asking, so that no
// worker hears the old one any more. A standby that reaches all workers may then ask. The holder
// has the first turn, since its requests wait in it: a standby waits for `patience` once all
// workers are there.
//
// A holder that was cut off while all its workers were replaced may find that an older scheduler
// holds the new ones. It then waits as a standby would.
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
    // False: takes the workers from an older holder at once, the first time.
    bool stands_by = true;
    int64_t patience_ns = 2 * kNanosPerSecond;
  };

  // `incarnation`: nanoseconds of the wall clock.
  Succession(int32_t num_ranks, uint64_t incarnation, const Settings& settings);

  // Only grows. Links must be dialed anew when it has grown.
  uint64_t incarnation() const { return incarnation_; }

  // Returns false if no clock less than a year ahead of this one can have given this number.
  bool IsPossible(uint64_t holder_incarnation) const { return holder_incarnation <= max_; }

  // Takes a report of the rank's worker. Incarnation 0: the worker has no holder.
  void OnReport(int32_t rank, uint64_t holder_incarnation, int64_t silence_ns, Instant now);
  // The link was given up: forgets what its worker said, except since when it has named its holder.
  void Forget(int32_t rank);

  // Returns true if this scheduler has asked and a newer one has asked since.
  bool IsOvertaken() const;
  // Gives up the claim to the workers.
  void StepBack() { has_asked_ = false; }

  // Returns the scheduler that this one waits for; nullopt if none.
  std::optional<uint64_t> WaitsFor() const;
  // Returns true if a worker has heard of the other scheduler since first naming it: it lives.
  bool DoesOtherLive(Instant now) const;

  enum class Verdict : uint8_t {
    kAsk,     // this scheduler is the holder from now on
    kWait,    // for the other one, or for its turn
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
    int64_t silence_ns = 0;  // NewestHolder: the longest of all ranks
  };

  struct Worker {
    std::optional<Holder> holder;  // as reported over the present link
    uint64_t named = 0;            // its last holder, reported over any link
    Instant named_since = 0;
    bool is_asked = false;  // over the present link; the last report may predate it
  };

  Holder NewestHolder() const;
  // Returns the newest holder; nullopt if it is this scheduler, or its predecessor in a late
  // report.
  std::optional<Holder> Other() const;
  bool HaveAllReported() const;
  // Returns true if all workers are new since this scheduler asked, and an older one holds them.
  bool AreWorkersReplaced() const;
  void TakeNumberAbove(uint64_t incarnation);

  const int64_t patience_ns_;
  const uint64_t max_;
  const uint64_t own_part_;
  bool stands_by_;
  uint64_t incarnation_;
  uint64_t last_asked_as_ = 0;
  bool has_asked_ = false;
  bool has_waited_ = false;  // for another holder since it asked last; its turn is still to come
  uint64_t outwaited_ = 0;   // the holder that it need not wait for again, as its turn has come
  Instant outwaited_at_ = 0;
  std::vector<Worker> by_rank_;
  std::optional<Instant> all_are_there_since_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_SUCCESSION_H_
