// WorkerGroup decides how N workers become one: who is dialled when, when an epoch begins, which
// answers count, and when the group is lost. It is a state machine without threads, sockets or
// clock: events in, actions out.
//
//   dial -> greet -> (all ranks) agree, ask -> begin epoch -> (all) ready -> steps ... -> lost
//     ^                                                                                    |
//     +------------------------------------------------------------------------------------+
//
// The epoch is the group's. A block id means something on every rank or on none, so the loss of one
// rank ends the epoch for all; workers that live keep their weights and are greeted again.
//
// A rank is lost when
//   its connection breaks and is not mended within the lease,
//   it sends no report for long: the process is stopped, or the way to it is cut,
//   it has a step to compute and its progress stands still for the step timeout, whatever it says
//     that it does, and it does not wait for another rank that has still to answer,
//   it refuses a step, or its answer differs from the other ranks',
//   its reports come from another process than was greeted.
// A worker that was fenced for standing still, and comes back as the same process, was slow and not
// stuck: the step timeout doubles for it, so that a slow machine cannot be fenced for ever.
//
// A loss is a crash if a request can have caused it: when the next epoch is ready another process
// is in the place of a rank; or the rank stood still in the step, or failed at the step itself.
// Whose processes are all there again was cut off, stopped for a while, or taken over.
//
// Several schedulers may know the same workers; Succession says when this one asks for them. One
// that waits for another is a standby: it has greeted the workers, and begins no epoch. One that
// has lost its workers to a scheduler that lives becomes a standby, without its requests. So does
// one that has heard of no worker for long (cut_off_ns), since another one may have them.
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
  // From the first tick on. Whoever is started with the scheduler is not there yet.
  int64_t arrival_ns = 5 * kNanosPerSecond;
  int64_t lease_ns = 1500 * kNanosPerMilli;       // a broken stream of steps may be mended so long
  int64_t silence_ns = 2000 * kNanosPerMilli;     // without a report
  int64_t call_ns = 5 * kNanosPerSecond;          // idle, and a handshake or an epoch is unanswered
  int64_t step_timeout_ns = 5 * kNanosPerSecond;  // of a step without progress
  int64_t mend_pause_ns = 50 * kNanosPerMilli;
  int64_t min_backoff_ns = 50 * kNanosPerMilli;
  int64_t max_backoff_ns = kNanosPerSecond;
  // Another scheduler of which a worker has not heard for so long is gone; so is, for this one, a
  // worker that has not reported for so long.
  int64_t standby_ns = 2 * kNanosPerSecond;
  // This scheduler has heard of no worker for so long: requests go on elsewhere. 0: they wait.
  int64_t cut_off_ns = 0;
};

class WorkerGroup {
 public:
  // Dials when it is ticked first. REQUIRES: num_ranks > 0.
  WorkerGroup(const GroupSettings& settings,
              int32_t num_ranks,
              uint64_t scheduler_incarnation,
              const GroupTiming& timing);

  // Of the loop. Plan: REQUIRES an epoch that is ready, and the plan before was answered.
  void Plan(const StepPlan& plan, Instant now);
  // A plan of this epoch cannot be sent: the epoch is lost, by a failure at the step if the status
  // says so (worker_refusal.h). Ignored when the epoch is over already.
  void RejectPlan(uint64_t group_epoch, const absl::Status& status, Instant now);
  // Nothing of this epoch will be accepted any more: an answer did not fit its plan. Ignored when
  // the epoch is over already.
  void Abandon(uint64_t group_epoch, Instant now);

  // Of links. What a link says whose number is not the present one is ignored.
  void OnHello(LinkId link, absl::StatusOr<WorkerHello> hello, Instant now);
  void OnEpochBegun(LinkId link, const absl::Status& status, Instant now);
  void OnAnswer(LinkId link, StepResult result, Instant now);
  void OnStepsEnd(LinkId link, const absl::Status& status, Instant now);
  void OnReport(LinkId link, const WorkerReport& report, Instant now);
  void OnWatchEnd(LinkId link, const absl::Status& status, Instant now);

  // Time has passed. To be called every 50 ms or so. One that is kLateTickNs late finds that the
  // scheduler stood still, and blames no worker for the time.
  static constexpr int64_t kLateTickNs = 500 * kNanosPerMilli;
  void Tick(Instant now);

  // What is to be done since the last call, in order.
  std::vector<GroupAction> TakeActions();

  uint64_t scheduler_incarnation() const { return succession_.incarnation(); }
  uint64_t group_epoch() const { return group_epoch_; }
  bool is_ready() const { return phase_ == Phase::kReady; }
  RankPhase phase_of(int32_t rank) const;
  // Nothing while the rank is away or loads.
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
    std::string ready_uuid;  // in the epoch that was ready last
    Instant heard_at = 0;    // the last report
    WorkerReport report;
    Instant seen_at = 0;               // the last report, over any link
    Instant moved_at = 0;              // progress was seen
    std::optional<Instant> idle_at;    // idle since then, although something is asked for
    std::string slow_uuid;             // fenced for standing still
    int64_t slowness = 1;              // times the step timeout
    bool has_stream = false;           // of steps
    Instant opened_at = 0;             // the stream
    Instant reopen_at = 0;             // when there is none
    std::optional<Instant> broken_at;  // no answer since the stream broke
    std::optional<StepResult> answer;  // to the pending plan
  };

  // The plan that is not answered by all.
  struct Pending {
    StepHeader header;
    uint64_t digest = 0;
    std::vector<BlockSwapIn> swap_ins;
  };

  static bool IsGreeted(const Rank& rank);
  // Over the present link.
  static bool HasReported(const Rank& rank);
  // The rank that the link belongs to; null for an old link.
  Rank* Find(LinkId link);
  LinkId LinkOf(const Rank& rank) const;
  int32_t IndexOf(const Rank& rank) const;

  void Dial(Rank& rank, Instant now);
  void Greet(Rank& rank);
  // The rank goes away, and is dialled after a pause; the epoch, if there is one, ends.
  void DropRank(Rank& rank, const absl::Status& status, Instant now);
  void Refuse(Rank& rank, const absl::Status& status, Instant now);
  void CloseAndPause(Rank& rank, Instant now);
  // Errors: PROTOCOL_VIOLATION, for a holder that cannot be.
  absl::Status TakeHolder(const Rank& rank, Instant now);
  void RefuseHolder(Rank& rank, const absl::Status& status, Instant now);
  // What follows from the holders that workers name, before this scheduler asks.
  void HandleSuccession(Instant now);
  void AskIfAllAreThere(Instant now);
  void BeginEpoch(Agreement agreement);
  void BecomeReadyIfAllBegan();
  void OpenStream(Rank& rank);
  // Every rank is dialled anew, at once.
  void Regather(Instant now);
  // The epoch that was ready is over. Ranks are dialled anew: after a pause, if several epochs in a
  // row have answered nothing, else a rank that always fails would keep everybody busy.
  void EndEpoch(Instant now);
  void Lose(const absl::Status& status, Instant now);
  // 0: it stands by for none.
  void StandBy(uint64_t other_incarnation);
  // How many have not reported for so long.
  size_t NumSilent(int64_t duration_ns, Instant now) const;
  // Some workers are there, and one has not been for long.
  bool IsCutOff(Instant now) const;
  bool IsCutOffFromAll(Instant now) const;
  // Takes what is known of the last epoch's end.
  bool WasCrash();
  void BeginToWaitAnew(Instant now);
  void CheckRank(Rank& rank, Instant now);
  bool IsAsked(const Rank& rank) const;
  void CheckCall(Rank& rank, Instant now);
  void CheckStep(Rank& rank, Instant now);
  bool WaitsForAnother(const Rank& rank) const;
  void AnswerIfComplete(Instant now);
  // "rank 2: ..." where there are several.
  absl::Status Blame(const Rank& rank, const absl::Status& status) const;

  const GroupSettings settings_;
  const GroupTiming timing_;
  Succession succession_;
  uint64_t waits_for_ = 0;  // the scheduler that was reported last as the one with the workers
  Instant has_waited_until_ = 0;  // a worker named one that this scheduler waits for
  uint64_t group_epoch_ = 0;
  uint64_t last_link_number_ = 0;
  Instant first_tick_ = 0;
  Instant last_tick_ = 0;
  Phase phase_ = Phase::kGathering;
  std::vector<Rank> ranks_;
  std::optional<Agreement> agreement_;  // of the epoch that begins or is ready
  std::optional<Numerics> pinned_;      // of the group that was ready last, for its requests
  bool has_failed_at_step_ = false;     // in that epoch, by what a rank did
  int32_t num_failed_epochs_ = 0;       // in a row, over before they gave a token
  bool has_sampled_ = false;            // in this epoch, a step that was answered
  std::optional<Pending> pending_;
  std::vector<GroupAction> actions_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_GROUP_WORKER_GROUP_H_
