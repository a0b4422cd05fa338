// Succession decides when this scheduler, one of several, asks for the workers, that is, sends them
// BeginEpoch.
//
// A worker obeys its holder: the newest scheduler that asked for it (SchedulerClaim). Reports of
// the worker name the holder and the time since the worker last heard from the holder. A scheduler
// that has not asked is a standby while another scheduler holds the workers. The standby asks when
// some worker has not heard from the holder for `patience`: by then the holder computes nothing any
// more, since it needs all workers.
//
// A scheduler asks under a number (incarnation) above the holder's. A standby with a lower number
// first takes the holder's number + 1 + own_part_, where own_part_ is the standby's start time
// modulo 1 ms. So two standbys hardly ever take the same number.
//
// A holder that cannot reach a worker lets go: it takes a higher number without asking. Workers
// hear nothing more under the old number, so a standby that reaches all workers may ask. The former
// holder gets the first chance to ask, since its requests wait for the workers. So a standby asks
// only after all workers have been connected for `patience`.
//
// While a holder is cut off, all its workers may be replaced, and an older scheduler may hold the
// new workers. The former holder then waits like a standby.
//
// Thread safety: not thread-safe.
// Source:        fencing by growing numbers, as in Raft; but here the workers, not the other
//                schedulers, measure the time since the holder was last heard.
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
    // False: when this scheduler first asks for the workers, it takes them from an older holder at
    // once, without standing by.
    bool stands_by = true;
    int64_t patience_ns = 2 * kNanosPerSecond;
  };

  // `incarnation`: nanoseconds of the wall clock.
  Succession(int32_t num_ranks, uint64_t incarnation, const Settings& settings);

  // Number under which this scheduler asks for the workers. It only grows. After it has grown, all
  // links must be dialed anew.
  uint64_t incarnation() const { return incarnation_; }

  // Returns false if holder_incarnation is more than a year above the incarnation with which this
  // scheduler started. Then one of the two schedulers' clocks is wrong.
  bool IsPossible(uint64_t holder_incarnation) const { return holder_incarnation <= max_; }

  // Takes a report of the rank's worker. holder_incarnation 0: the worker has no holder.
  // silence_ns: time since the worker last heard from the holder.
  void OnReport(int32_t rank, uint64_t holder_incarnation, int64_t silence_ns, Instant now);
  // Called when the rank's link was closed. Forgets the worker's reports, but keeps which holder
  // the worker named last, and since when.
  void Forget(int32_t rank);

  // Returns true if this scheduler has asked for the workers, and a newer scheduler has asked for
  // them since.
  bool IsOvertaken() const;
  // Gives up the claim to the workers.
  void StepBack() { has_asked_ = false; }

  // Returns the incarnation of the scheduler for which this scheduler waits; nullopt if none.
  std::optional<uint64_t> WaitsFor() const;
  // Returns true if the newest holder is another scheduler and lives. A holder counts as living if
  // some worker has heard from it after that worker's first report that named it.
  bool DoesOtherLive() const;

  enum class Verdict : uint8_t {
    kAsk,     // this scheduler is the holder from now on
    kWait,    // wait for another scheduler, or until all workers were connected for patience_ns
    kRename,  // the incarnation has grown: dial all workers anew, then call Decide again
  };
  // Decides what this scheduler does now. REQUIRES: all workers are connected, and each worker has
  // reported since it was dialed.
  Verdict Decide(Instant now);

  bool has_asked() const { return has_asked_; }
  // Takes a higher incarnation without asking for the workers. Called if this scheduler has asked
  // for them and cannot reach a worker.
  void LetGo();

 private:
  struct Holder {
    uint64_t incarnation = 0;
    // Time since a worker last heard from this holder.
    int64_t silence_ns = 0;
  };

  struct Worker {
    std::optional<Holder> holder;  // reported over the present link; nullopt: no report yet
    uint64_t named = 0;            // incarnation of the last reported holder, over any link
    Instant named_since = 0;
    Instant reported_at = 0;  // time of the last report, over any link
    // True if this scheduler has asked for the worker over the present link. The worker's last
    // report may be older than this request.
    bool is_asked = false;
  };

  // Returns the newest holder that the workers name, and the longest silence_ns of all workers that
  // name it. Returns incarnation 0 if no worker has a holder.
  Holder NewestHolder() const;
  // Returns the newest holder that the workers name. Returns nullopt if that holder is this
  // scheduler, or if a late report still names this scheduler's predecessor.
  std::optional<Holder> Other() const;
  bool HaveAllReported() const;
  // Returns true if every worker process was replaced since this scheduler asked, and an older
  // scheduler, which still lives, holds the new processes.
  bool AreWorkersReplaced() const;
  void TakeNumberAbove(uint64_t incarnation);

  const int64_t patience_ns_;
  const uint64_t max_;
  const uint64_t own_part_;
  bool stands_by_;
  uint64_t incarnation_;
  uint64_t last_asked_as_ = 0;
  bool has_asked_ = false;
  // True if this scheduler has waited for another holder since it last asked for the workers. Then
  // it asks again only after all workers have been connected for patience_ns_.
  bool has_waited_ = false;
  // Incarnation of the newest other holder when Decide last returned kAsk or kRename; 0: none.
  // Until all workers have reported after kRename, this scheduler does not wait for that holder
  // again.
  uint64_t outwaited_ = 0;
  Instant outwaited_at_ = 0;
  std::vector<Worker> by_rank_;
  std::optional<Instant> all_are_there_since_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_SUCCESSION_H_
