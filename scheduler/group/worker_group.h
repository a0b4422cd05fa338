// WorkerGroup makes N workers act as one. It decides when each is dialed, when an epoch begins,
// which answers count, and when the group is lost. It is a state machine without threads, sockets
// or clock: events in, actions out.
//
//   dial -> greet -> (all ranks) agree, ask -> begin epoch -> (all) ready -> steps ... -> lost
//     ^                                                                                    |
//     +------------------------------------------------------------------------------------+
//
// All ranks share one epoch. A block id means something on every rank or on none, so the loss of
// one rank ends the epoch for all. Surviving workers keep their weights and are greeted again.
//
// A rank is lost when
//   its connection breaks and is not mended within the lease,
//   it sends no report for silence_ns: the process is stopped, or the network is cut,
//   it has a step to compute, is in any phase but idle, makes no progress for the step timeout, and
//     waits for no other rank that has still to answer,
//   it refuses a step, or its answer differs from the other ranks',
//   its reports come from another process than was greeted.
// A worker that was fenced for standing still and returns as the same process was slow, not stuck.
// The step timeout doubles for it, else a slow machine would be fenced for ever.
//
// A loss is a crash if a request can have caused it: another process is in a rank's place when the
// next epoch is ready, or a rank stood still in the step or failed at it. If every process is the
// same as before, the loss was a network cut, a pause, or a takeover.
//
// Several schedulers may know the same workers; Succession decides when this one asks for them. A
// standby waits for another scheduler: it has greeted the workers, and begins no epoch. A scheduler
// becomes a standby, without its requests, if a living scheduler took its workers. So does one that
// has heard of no worker for cut_off_ns, since another scheduler may hold them.
//
// Thread safety: not thread-safe; one owner.
// Invariants:    after ReportReady of an epoch comes at most one ReportLost of it, and none after
//                Abandon; a ReportResult answers the plan that was given last, once; between
//                ReportStandby of a scheduler and ReportReady comes ReportStandby of none; the
//                incarnation only grows.
// Source:        PagedAttention, Kwon et al. 2023, section 4.6; fencing by epochs as in Raft.
#ifndef QUIRE_SCHEDULER_GROUP_WORKER_GROUP_H_
#define QUIRE_SCHEDULER_GROUP_WORKER_GROUP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/clock.h"
#include "common/step/kv_memory.h"
#include "common/step/rank_status.h"
#include "common/step/step_plan.h"
#include "common/step/step_result.h"
#include "scheduler/group/agreement.h"
#include "scheduler/group/group_action.h"
#include "scheduler/group/succession.h"
#include "scheduler/group/worker_hello.h"

namespace quire {

struct GroupTiming {
  // From the first tick: workers started with the scheduler are reported as away only after it.
  int64_t arrival_ns = 5 * kNanosPerSecond;
  int64_t lease_ns = 1500 * kNanosPerMilli;       // to mend a broken stream of steps
  int64_t silence_ns = 2000 * kNanosPerMilli;     // without a report, until a rank is lost
  int64_t call_ns = 5 * kNanosPerSecond;          // idle with a handshake or an epoch unanswered
  int64_t step_timeout_ns = 5 * kNanosPerSecond;  // of a step without progress
  int64_t mend_pause_ns = 50 * kNanosPerMilli;
  int64_t min_backoff_ns = 50 * kNanosPerMilli;
  int64_t max_backoff_ns = kNanosPerSecond;
  // Another scheduler is gone if a worker has not heard of it for so long. A worker is cut off from
  // this one if it has not reported for so long.
  int64_t standby_ns = 2 * kNanosPerSecond;
  // Without a report of any worker for so long, requests end and go on elsewhere. 0: they wait.
  int64_t cut_off_ns = 0;
};

class WorkerGroup {
 public:
  // Dials at the first Tick. REQUIRES: num_ranks > 0.
  WorkerGroup(const GroupSettings& settings,
              int32_t num_ranks,
              uint64_t scheduler_incarnation,
              const GroupTiming& timing);

  // Called by the loop. Plan is ignored if its epoch is over; REQUIRES: the last one was answered.
  void Plan(const StepPlan& plan, Instant now);
  // A plan of this epoch cannot be sent: loses the epoch. The status decides whether that is a
  // failure at the step (worker_refusal.h). Ignored if the epoch is already over.
  void RejectPlan(uint64_t group_epoch, const absl::Status& status, Instant now);
  // An answer did not fit its plan: ends the epoch without ReportLost, as a failure at the step.
  // Ignored if the epoch is already over.
  void Abandon(uint64_t group_epoch, Instant now);

  // Called with events of links. Ignored if the link's number is not the present one.
  void OnHello(LinkId link, absl::StatusOr<WorkerHello> hello, Instant now);
  void OnEpochBegun(LinkId link, const absl::Status& status, Instant now);
  void OnAnswer(LinkId link, StepResult result, Instant now);
  void OnStepsEnd(LinkId link, const absl::Status& status, Instant now);
  void OnReport(LinkId link, const WorkerReport& report, Instant now);
  void OnWatchEnd(LinkId link, const absl::Status& status, Instant now);

  // Time has passed; call about every 50 ms. A tick that is kLateTickNs late means that the
  // scheduler stood still, so no worker is blamed for that time.
  static constexpr int64_t kLateTickNs = 500 * kNanosPerMilli;
  void Tick(Instant now);

  // Returns the actions since the last call, in order.
  std::vector<GroupAction> TakeActions();

  uint64_t scheduler_incarnation() const { return succession_.incarnation(); }
  uint64_t group_epoch() const { return group_epoch_; }
  bool is_ready() const { return phase_ == Phase::kReady; }
  RankPhase phase_of(int32_t rank) const;
  // Returns an empty KvMemory while the rank is away or loads.
  KvMemory kv_memory_of(int32_t rank) const;

 private:
  enum class Phase : uint8_t { kGathering, kBeginning, kReady };
  enum class RankState : uint8_t { kAway, kGreeting, kLoading, kGreeted, kBeginning, kBegun };

  struct Rank {
    RankState state = RankState::kAway;
    uint64_t link_number = 0;
    Instant dial_at = 0;
    int64_t backoff_ns = 0;
    WorkerHello hello;
    std::string ready_uuid;  // of the process in the last ready epoch
    Instant heard_at = 0;    // last report or dial
    WorkerReport report;
    Instant seen_at = 0;               // last report, over any link
    Instant moved_at = 0;              // last progress
    std::optional<Instant> idle_at;    // idle since then, with a call or step unanswered
    std::string slow_uuid;             // last process fenced for standing still
    int64_t slowness = 1;              // factor of the step timeout
    bool has_stream = false;           // of steps
    Instant reopen_at = 0;             // without a stream
    std::optional<Instant> broken_at;  // first break of the stream without an answer since
    std::optional<StepResult> answer;  // to the pending plan
  };

  // The plan that some rank has still to answer.
  struct Pending {
    StepHeader header;
    uint64_t digest = 0;
    std::vector<BlockSwapIn> swap_ins;
  };

  static bool IsGreeted(const Rank& rank);
  // Returns true if the rank has reported over the present link.
  static bool HasReported(const Rank& rank);
  // Returns the link's rank; null for an old link.
  Rank* Find(LinkId link);
  LinkId LinkOf(const Rank& rank) const;
  int32_t IndexOf(const Rank& rank) const;

  void Dial(Rank& rank, Instant now);
  void Greet(Rank& rank);
  // The rank goes away and is dialed after a pause. Ends the epoch if there is one.
  void DropRank(Rank& rank, const absl::Status& status, Instant now);
  void Refuse(Rank& rank, const absl::Status& status, Instant now);
  void CloseAndPause(Rank& rank, Instant now);
  // Errors: PROTOCOL_VIOLATION if the holder's incarnation lies over a year ahead of this clock.
  absl::Status TakeHolder(const Rank& rank, Instant now);
  void RefuseHolder(Rank& rank, const absl::Status& status, Instant now);
  // Acts on the holders that workers name, before this scheduler asks.
  void HandleSuccession(Instant now);
  void AskIfAllAreThere(Instant now);
  void BeginEpoch(Agreement agreement);
  void BecomeReadyIfAllBegan();
  void OpenStream(Rank& rank);
  // Dials every reachable rank anew, at once.
  void Regather(Instant now);
  // Ends the ready epoch and dials the ranks anew. Pauses first if several epochs in a row gave no
  // token, else a rank that always fails would keep the others busy.
  void EndEpoch(Instant now);
  void Lose(const absl::Status& status, Instant now);
  // Stands by for this scheduler. 0: stands by no longer.
  void StandBy(uint64_t other_incarnation);
  // Returns the number of ranks without a report for so long.
  size_t NumSilent(int64_t duration_ns, Instant now) const;
  // Returns true if some workers report, and one has not for standby_ns.
  bool IsCutOff(Instant now) const;
  bool IsCutOffFromAll(Instant now) const;
  // Returns whether the last epoch ended by a crash, and resets that.
  bool WasCrash();
  void BeginToWaitAnew(Instant now);
  void CheckRank(Rank& rank, Instant now);
  bool IsAsked(const Rank& rank) const;
  void CheckCall(Rank& rank, Instant now);
  void CheckStep(Rank& rank, Instant now);
  bool WaitsForAnother(const Rank& rank) const;
  void AnswerIfComplete(Instant now);
  // Prefixes the message with "rank 2: " if there are several ranks.
  absl::Status Blame(const Rank& rank, const absl::Status& status) const;

  const GroupSettings settings_;
  const GroupTiming timing_;
  Succession succession_;
  uint64_t waits_for_ = 0;      // the holder reported last; 0: none
  Instant last_waited_at_ = 0;  // last time that it had to wait for a holder
  uint64_t group_epoch_ = 0;
  uint64_t last_link_number_ = 0;
  Instant first_tick_ = 0;
  Instant last_tick_ = 0;
  Phase phase_ = Phase::kGathering;
  std::vector<Rank> ranks_;
  std::optional<Agreement> agreement_;  // of the beginning or ready epoch
  std::optional<Numerics> pinned_;      // of the last ready group: its requests need the same
  bool has_failed_at_step_ = false;     // in the last epoch
  int32_t num_failed_epochs_ = 0;       // in a row, without a token
  bool has_sampled_ = false;            // in this epoch
  std::optional<Pending> pending_;
  std::vector<GroupAction> actions_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_WORKER_GROUP_H_
