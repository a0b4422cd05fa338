// WorkerGroup makes N workers act as one. It decides when to dial each worker, when an epoch
// begins, which answers count, and when the group is lost. It is a state machine without threads,
// sockets or clock: events in, actions out.
//
//   dial -> greet -> (all ranks) agree, ask -> begin epoch -> (all) ready -> steps ... -> lost
//     ^                                                                                    |
//     +------------------------------------------------------------------------------------+
//
// All ranks share one epoch. Every rank holds a part of each block, so the loss of one rank ends
// the epoch for all. Surviving workers keep their weights and are greeted again.
//
// A rank is lost when
//   its connection breaks and is not mended within lease_ns,
//   it sends no report for silence_ns: the process is stopped, or the network is cut,
//   it stands still: it has a step to compute, is not idle, makes no progress for the step timeout,
//     and does not wait for another rank that has not answered yet,
//   it refuses a step, or its answer differs from the other ranks',
//   its reports come from another process than the greeted one.
// FailureDetector judges the reports. It gives more time to a worker that is slow but not stuck.
//
// A loss counts as a crash if a request can have caused it. This is so if a rank stood still in the
// step or failed at the step, or if some rank has a new process when the next epoch is ready. A
// network cut, a pause, a takeover, or answers that differ are no crash.
//
// Several schedulers may know the same workers. Succession decides when this scheduler asks for the
// workers. A standby is a scheduler that has greeted the workers, but begins no epoch while another
// scheduler holds them. A scheduler ends its requests and becomes a standby in two cases: a living
// scheduler took its workers, or no worker has reported for cut_off_ns, so another scheduler may
// hold the workers.
//
// Thread safety: not thread-safe; one owner.
// Invariants:    each ReportReady is followed by at most one ReportLost of its epoch, and by none
//                after Abandon. A plan gets at most one ReportResult, and gets none once the next
//                plan is given. ReportStandby(0) comes between a ReportStandby that names a
//                scheduler and the next ReportReady. The incarnation only grows.
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
#include "scheduler/group/failure_detector.h"
#include "scheduler/group/group_action.h"
#include "scheduler/group/step_answers.h"
#include "scheduler/group/succession.h"
#include "scheduler/group/worker_hello.h"

namespace quire {

struct GroupTiming {
  // For this time after the first tick, no worker is reported as away, because workers may still be
  // starting.
  int64_t arrival_ns = 5 * kNanosPerSecond;
  // A rank is lost if its stream of steps is broken and not mended within this time.
  int64_t lease_ns = 1500 * kNanosPerMilli;
  // A rank is lost if it sends no report for this time.
  int64_t silence_ns = 2000 * kNanosPerMilli;
  // A rank is dropped if it has not answered a handshake or BeginEpoch and reports idle for this
  // time: the call or its answer was lost.
  int64_t call_ns = 5 * kNanosPerSecond;
  // A rank is lost if it makes no progress in a step for this time, unless it is idle or waits for
  // another rank.
  int64_t step_timeout_ns = 5 * kNanosPerSecond;
  int64_t mend_pause_ns = 50 * kNanosPerMilli;
  int64_t min_backoff_ns = 50 * kNanosPerMilli;
  int64_t max_backoff_ns = kNanosPerSecond;
  // Another scheduler counts as dead if a worker has heard nothing from that scheduler for this
  // time. A worker counts as cut off if it has sent this scheduler no report for this time.
  int64_t standby_ns = 2 * kNanosPerSecond;
  // If no worker has reported for this time, this scheduler ends its requests, so that clients
  // resume them at another scheduler. 0: requests wait for the workers.
  int64_t cut_off_ns = 0;
};

class WorkerGroup {
 public:
  // Dials no rank before the first Tick. REQUIRES: num_ranks > 0.
  WorkerGroup(const GroupSettings& settings,
              int32_t num_ranks,
              uint64_t scheduler_incarnation,
              const GroupTiming& timing);

  // Sends the plan to every rank. Called by the loop. Ignored if the plan's epoch is over.
  // REQUIRES: the previous plan was answered.
  void Plan(const StepPlan& plan, Instant now);
  // Called if a plan cannot be sent. Ends the plan's epoch as lost. The loss counts as a crash if
  // IsFailureAtStep(status) (worker_refusal.h). Ignored if the epoch is already over.
  void RejectPlan(uint64_t group_epoch, const absl::Status& status, Instant now);
  // Called by the loop if an answer does not fit its plan. Ends the epoch without a ReportLost,
  // since the loop already knows. Counts as a crash. Ignored if the epoch is already over.
  void Abandon(uint64_t group_epoch, Instant now);

  // Each of these functions handles an event of a link. The event is ignored if the rank has a
  // newer link by now. An ignored answer adds the action ReportStale.
  void OnHello(LinkId link, absl::StatusOr<WorkerHello> hello, Instant now);
  void OnEpochBegun(LinkId link, const absl::Status& status, Instant now);
  void OnAnswer(LinkId link, StepResult result, Instant now);
  void OnStepsEnd(LinkId link, const absl::Status& status, Instant now);
  void OnReport(LinkId link, const WorkerReport& report, Instant now);
  void OnWatchEnd(LinkId link, const absl::Status& status, Instant now);

  // If at least this time passes between two calls of Tick, the scheduler itself stood still. The
  // workers' timeouts then start anew.
  static constexpr int64_t kLateTickNs = 500 * kNanosPerMilli;
  // Checks all timeouts. Called about every 50 ms.
  void Tick(Instant now);

  // Returns the actions added since the last call of TakeActions, in order.
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
    RankRefusal refusal;     // latest refusal, sent at each greeting; kept until all ranks agree
    std::string ready_uuid;  // the rank's process in the last ready epoch
    FailureDetector detector;
    bool has_stream = false;           // a stream of steps is open
    Instant reopen_at = 0;             // earliest time to open a stream again after a break
    std::optional<Instant> broken_at;  // first break of the stream since it last worked
  };

  static bool IsGreeted(const Rank& rank);
  // Returns true if a report came over the present link after the last RestartTimeouts.
  static bool HasReported(const Rank& rank);
  // Returns the link's rank; null if the rank has a newer link.
  Rank* Find(LinkId link);
  LinkId LinkOf(const Rank& rank) const;
  int32_t IndexOf(const Rank& rank) const;

  void Dial(Rank& rank, Instant now);
  void Greet(Rank& rank);
  // If an epoch is ready, ends it as lost. Otherwise gives up an epoch that is about to begin,
  // closes the rank's link, and dials the rank again after a pause. Reports the rank as away, but
  // not within arrival_ns of the start.
  void DropRank(Rank& rank, const absl::Status& status, Instant now);
  // As DropRank. If no epoch is ready, reports the rank as refused instead of away, and keeps the
  // refusal for the next greeting.
  void Refuse(Rank& rank, const absl::Status& status, Instant now);
  void CloseAndPause(Rank& rank, Instant now);
  // Tells succession_ which holder the rank has reported. Errors: PROTOCOL_VIOLATION if the
  // holder's incarnation is more than a year ahead of this scheduler's clock.
  absl::Status TakeHolder(const Rank& rank, Instant now);
  // If the workers' reports name another scheduler as holder, ends the epoch or stands by.
  void HandleSuccession(Instant now);
  void AskIfAllAreThere(Instant now);
  void BeginEpoch(Agreement agreement);
  void BecomeReadyIfAllBegan();
  void OpenStream(Rank& rank);
  // Ends the epoch. Dials all ranks anew without a pause, except ranks that are kAway.
  void Regather(Instant now);
  // Ends the ready epoch and dials the ranks anew. After several epochs in a row without a token,
  // dials only after a pause, else a rank that always fails would keep the others busy.
  void EndEpoch(Instant now);
  void Lose(const absl::Status& status, Instant now);
  // Reports that this scheduler stands by, because the scheduler other_incarnation holds the
  // workers. 0: reports that this scheduler no longer stands by.
  void StandBy(uint64_t other_incarnation);
  // Returns the number of ranks that have sent no report for duration_ns.
  size_t NumSilent(int64_t duration_ns, Instant now) const;
  // Returns true if no epoch is ready, and at least one worker has sent no report for standby_ns
  // while other workers report.
  bool IsCutOff(Instant now) const;
  bool IsCutOffFromAll(Instant now) const;
  // Returns true if the last ready epoch ended by a crash. Clears has_failed_at_step_ and updates
  // each ready_uuid, so call this only once, when the next epoch becomes ready.
  bool WasCrash();
  void CheckRank(Rank& rank, Instant now);
  // Returns true if the rank owes an answer to a handshake, to BeginEpoch, or to the pending plan.
  bool IsAsked(const Rank& rank) const;
  // Returns true if a plan is pending and the rank has not answered it.
  bool OwesAnswer(const Rank& rank) const;
  void CheckCall(Rank& rank, Instant now);
  void CheckStep(Rank& rank, Instant now);
  // For each rank, returns the rank for which it waits in the pending step; nullopt: none. A wait
  // for a rank that has already answered does not count.
  std::vector<std::optional<int32_t>> WaitsInStep() const;
  void AnswerIfComplete(Instant now);
  // Prefixes the message with "rank 2: " if there are several ranks.
  absl::Status Blame(const Rank& rank, const absl::Status& status) const;

  const GroupSettings settings_;
  const GroupTiming timing_;
  Succession succession_;
  uint64_t waits_for_ = 0;      // incarnation in the last ReportStandby; 0: does not stand by
  Instant last_waited_at_ = 0;  // last time that this scheduler had to wait for another one
  uint64_t group_epoch_ = 0;
  uint64_t last_link_number_ = 0;
  Instant first_tick_ = 0;
  Instant last_tick_ = 0;
  Phase phase_ = Phase::kGathering;
  std::vector<Rank> ranks_;
  std::optional<Agreement> agreement_;  // agreement of the epoch that begins or is ready
  std::optional<Numerics> pinned_;      // numerics of the last ready epoch; the next must match
  bool has_failed_at_step_ = false;     // the last epoch ended by a failure at a step
  int32_t num_failed_epochs_ = 0;       // epochs in a row that gave no token
  bool has_sampled_ = false;            // this epoch has given a token
  std::optional<StepAnswers> pending_;  // answers so far to the pending plan; nullopt: no plan
  std::vector<GroupAction> actions_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_WORKER_GROUP_H_
