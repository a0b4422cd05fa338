// StandbySimulation drives the real WorkerGroups of 2 to 4 schedulers over the same 1 to 8 ranks in
// virtual time. A rank is a process with the worker's SchedulerClaim and StepOrder, and an executor
// that meets the other ranks. The network's connections are noticed as broken only after a while.
// The schedulers have no core: a loop plans one step after another. Faults, drawn from the seed:
//   - a scheduler dies and restarts with the incarnation of its clock, which may be off or have
//     gone back by an hour; or it is stopped and goes on;
//   - the path between a scheduler and a rank, or all ranks, is cut for a while;
//   - a rank's process dies and is replaced, or is stopped and goes on;
//   - several of these come within milliseconds of each other, or of a scheduler's action.
//
// It checks that
//   - two schedulers never both commit: no rank executes a step of a superseded scheduler, and a
//     scheduler commits no step that it sent after another one was ready;
//   - a scheduler is ready within kMaxGap of the last fault, if one can reach all ranks;
//   - two are ready at the same time only until the superseded one can know;
//   - another scheduler becomes ready only after a fault, and not because a rank died;
//   - several take requests at the same time only until all but one can know;
//   - a standby never asks for workers that all hear their holder, and keeps standing by;
//   - a standby reports that it is one, and so does a superseded scheduler;
//   - no two schedulers ask under one number.
//
// Thread safety: for tests, one thread.
#ifndef QUIRE_TESTS_SCHEDULER_GROUP_STANDBY_SIMULATION_H_
#define QUIRE_TESTS_SCHEDULER_GROUP_STANDBY_SIMULATION_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/group/worker_group.h"
#include "tests/support/random.h"
#include "worker/runtime/scheduler_claim.h"
#include "worker/runtime/step_order.h"

namespace quire {

class StandbySimulation {
 public:
  struct Setup {
    int32_t num_schedulers = 2;
    int32_t num_ranks = 1;
    Instant start_spread = 0;  // all schedulers start within this time
    bool has_faults = true;
    bool is_verbose = false;  // logs events to standard error
  };
  static Setup DrawSetup(uint64_t seed);

  StandbySimulation(const Setup& setup, uint64_t seed);

  // Return "" or the fault. Drain mends everything and expects that one scheduler stays ready.
  std::string Run(Instant until);
  std::string Drain();

  int32_t NumReady() const;
  // Returns true if exactly one scheduler is ready and all others have reported that they stand by.
  bool IsSettled() const;

  struct Totals {
    Instant elapsed = 0;  // virtual
    int64_t num_faults = 0;
    int64_t num_starts = 0;
    int64_t num_ready = 0;
    int64_t num_takeovers = 0;  // became ready after another scheduler
    int64_t num_standbys = 0;
    int64_t num_superseded = 0;
    int64_t num_renamed = 0;   // asked under another number than its clock's
    int64_t num_overlaps = 0;  // two were ready at the same time
    int64_t num_commits = 0;
    int64_t num_refused_steps = 0;
    Instant longest_overlap = 0;
    Instant longest_gap = 0;  // none was ready, though one could have been
  };
  const Totals& totals() const { return totals_; }
  uint64_t trace_hash() const { return trace_hash_; }

 private:
  // Begin of the steady clock, so that no time is 0.
  static constexpr Instant kBegan = 1000 * kNanosPerSecond;

  enum class End : uint8_t { kWorker, kScheduler };

  // One connection of a scheduler to a rank.
  struct Connection {
    int32_t scheduler = 0;
    uint64_t start = 0;  // the scheduler's start number
    LinkId link;
    uint64_t incarnation = 0;  // in its Watch call
    uint64_t process = 0;      // number of the process at the other end; 0: none yet
    bool is_established = false;
    bool is_closed = false;   // by the scheduler
    bool is_dead = false;     // no message passes any more
    bool is_watched = false;  // as far as the worker knows, the Watch call is open
    bool is_told = false;     // the scheduler knows that it is dead
    Instant last_arrival[2] = {0, 0};
    std::vector<std::function<void()>> held;  // messages that a cut holds up, in order
  };
  using ConnectionPtr = std::shared_ptr<Connection>;

  struct Path {
    bool is_cut = false;
    uint64_t num_cuts = 0;
    uint64_t num_breaks = 0;
    bool is_broken = false;  // it is cut, or one end is stopped
    std::vector<ConnectionPtr> connections;
  };

  struct Task {
    ConnectionPtr connection;
    StepPlan plan;  // step_id 0: begins an epoch
  };
  struct Process {
    uint64_t number = 0;
    bool is_alive = false;
    bool is_stopped = false;
    bool is_look_due = false;
    Instant loaded_at = 0;
    StepOrder order;
    SchedulerClaim claim;
    uint64_t newest_asked = 0;
    Instant claimed_at = 0;
    Instant heard_at = 0;     // last time that the holder was heard
    Instant heard_since = 0;  // begin of hearing it without a gap
    uint64_t progress = 0;
    std::deque<Task> tasks;                                  // the front one is being executed
    uint64_t task = 0;                                       // number of the front task
    std::optional<std::pair<uint64_t, uint64_t>> meets_for;  // incarnation and epoch
    std::vector<std::function<void()>> unread;  // messages that arrived while it was stopped
  };

  // A worker's last report over the current link.
  struct Told {
    uint64_t holder = 0;
    int64_t silence_ns = 0;
  };
  struct Scheduler {
    int32_t index = 0;
    uint64_t start = 0;
    bool is_alive = false;
    bool is_stopped = false;
    bool stands_by = true;
    bool has_requests = false;  // takes requests: it was ready and is not superseded
    bool is_ready = false;      // as reported
    std::unique_ptr<WorkerGroup> group;
    std::vector<ConnectionPtr> connections;  // by rank
    std::vector<std::optional<Told>> told;   // by rank
    std::optional<StepPlan> plan;
    Instant sent_at = 0;
    Instant plans_at = 0;
    uint64_t group_epoch = 0;
    uint64_t last_step = 0;
    uint64_t standby_for = 0;
    uint64_t last_asked = 0;  // the number under which it asked last
    Instant asked_at = 0;
    std::set<uint64_t> numbers;
    uint64_t holder_to_report = 0;  // the holder that it must report
    std::optional<Instant> must_say_since;
    Instant hit_at = 0;  // last begin or end of one of its faults
    Instant continued_at = 0;
    Instant ready_at = 0;
    std::optional<Instant> first_rank_fault_at;  // since ready_at
    Instant lost_at = 0;                         // when it lost its last ready epoch
    bool was_lost_to_rank = false;               // by a rank's fault, not a scheduler's
    std::vector<std::function<void()>> unread;
  };

  struct Overlap {
    int32_t older = 0;
    int32_t newer = 0;
    Instant began_at = 0;
  };

  // Time.
  void At(Instant when, std::function<void()> event);
  void Every(Instant interval, std::function<bool()> event);  // until event returns false
  Instant Soon() { return random_.Between(1, 20) * kNanosPerMilli; }

  // The network.
  Path& PathOf(int32_t scheduler, int32_t rank);
  Path& PathOf(const Connection& connection);
  void Send(const ConnectionPtr& connection, End to, bool in_order, std::function<void()> message);
  void Arrive(const ConnectionPtr& connection, End to, const std::function<void()>& message);
  void ArriveAtWorker(const ConnectionPtr& connection, const std::function<void()>& message);
  void ArriveAtScheduler(const ConnectionPtr& connection, const std::function<void()>& message);
  void MarkDead(const ConnectionPtr& connection);
  void NoticeDeath(const ConnectionPtr& connection);
  void NoticeAtWorker(const ConnectionPtr& connection);
  void NoticeAtScheduler(const ConnectionPtr& connection);
  void Refresh(int32_t scheduler, int32_t rank);
  void RefreshAll();
  void AwaitPings(int32_t scheduler, int32_t rank);
  void MendPath(Path& path);

  // Workers.
  Process& ProcessOf(const Connection& connection);
  void StartProcess(int32_t rank, Instant load_time);
  void StartWatch(const ConnectionPtr& connection);
  void Look(int32_t rank);
  void Hear(Process& process, uint64_t incarnation);
  void SendReport(const ConnectionPtr& connection);
  void TakeAsk(const ConnectionPtr& connection, uint64_t incarnation, uint64_t epoch);
  void AddTask(int32_t rank, Task task);
  void BeginTask(int32_t rank);
  void BeginMeeting(int32_t rank);
  void EndMeeting(int32_t rank, const absl::Status& status);
  void BeginStep(int32_t rank);
  void EndStep(int32_t rank, const absl::Status& status);
  void EndTask(int32_t rank);
  void Abort(int32_t rank);
  // Returns an event that is dropped if the process or its task has changed by then.
  std::function<void()> OfTask(int32_t rank, std::function<void()> event);
  WorkerHello HelloOf(int32_t rank) const;

  // Schedulers.
  void StartScheduler(int32_t index, bool stands_by);
  std::function<void()> OfScheduler(const Scheduler& scheduler, std::function<void()> event);
  void Pump(Scheduler& scheduler);
  void PlanStep(Scheduler& scheduler);
  void Do(Scheduler& scheduler, const DialLink& dial);
  void Do(Scheduler& scheduler, const CloseLink& close);
  void Do(Scheduler& scheduler, const GreetWorker& greet);
  void Do(Scheduler& scheduler, const BeginWorkerEpoch& begin);
  void Do(Scheduler& /*scheduler*/, const OpenSteps& /*open*/) {}
  void Do(Scheduler& scheduler, const BreakSteps& steps);
  void Do(Scheduler& scheduler, const SendPlan& send);
  void Do(Scheduler& scheduler, const ReportReady& ready);
  void Do(Scheduler& scheduler, const ReportResult& report);
  void Do(Scheduler& /*scheduler*/, const ReportStale& /*stale*/) {}
  void Do(Scheduler& scheduler, const ReportLost& lost);
  void Do(Scheduler& scheduler, const ReportStandby& standby);
  void Do(Scheduler& scheduler, const ReportRefused& refused);
  void Do(Scheduler& /*scheduler*/, const ReportAway& /*away*/) {}
  void Do(Scheduler& /*scheduler*/, const ReportLoading& /*loading*/) {}
  void Close(Scheduler& scheduler, int32_t rank);
  ConnectionPtr ConnectionOf(const Scheduler& scheduler, LinkId link) const;

  // Faults.
  void DrawFault();
  void DrawFaults();
  void Aim();  // may draw a fault right after a scheduler's action
  void NoteFaultOf(Scheduler& scheduler);
  void NoteFaultOfRank(Instant over_at);
  void KillScheduler(Scheduler& scheduler, Instant restart_after, bool stands_by);
  void KillAllSchedulers();
  void ReplaceRanksOf(Scheduler& scheduler);
  void EndScheduler(Scheduler& scheduler);
  void StopScheduler(Scheduler& scheduler, Instant duration);
  void ContinueScheduler(Scheduler& scheduler);
  void Cut(Scheduler& scheduler, int32_t rank, Instant duration);
  void CutFromAll(Scheduler& scheduler, Instant duration);
  void Mend(int32_t scheduler, int32_t rank);
  void KillProcess(int32_t rank, Instant restart_after);
  void StopProcess(int32_t rank, Instant duration);
  void ContinueProcess(int32_t rank);
  Instant DrawDuration();

  // Checks.
  void Expect(bool condition, const std::string& what);
  void Audit();
  void AuditGap();
  void AuditOverlap();
  void AuditAdmission();
  void ExpectHolderIsSilent(const Scheduler& scheduler);
  void AuditReports(Scheduler& scheduler);
  void ExpectMayAsk(Scheduler& scheduler);
  void ExpectIsNotHeard(const Scheduler& asking, uint64_t asks_as);
  void ExpectMayBeReady(const Scheduler& scheduler);
  bool IsHolder(const Scheduler& scheduler) const;
  bool IsHeardByAll(uint64_t holder) const;
  bool CanReachAll(const Scheduler& scheduler) const;
  bool IsBlameless(const Scheduler& scheduler, Instant since) const;
  std::optional<Told> ToldOfOther(const Scheduler& scheduler) const;
  uint64_t NewestHolder() const;
  bool HasAllRanks(const Scheduler& scheduler) const;
  void NoteReady(const Scheduler& scheduler);
  void NoteLost(Scheduler& scheduler);
  static std::string NameOf(const Scheduler& scheduler);
  void Say(const std::string& what) const;
  void Trace(uint64_t word);

  const Setup setup_;
  Random random_;
  const GroupSettings settings_;
  const GroupTiming timing_;
  const Instant mean_fault_gap_;
  const Instant step_gap_;
  std::map<std::pair<Instant, uint64_t>, std::function<void()>> events_;  // by time, then number
  uint64_t num_events_ = 0;
  Instant now_ = 0;
  bool has_faults_;
  std::vector<Scheduler> schedulers_;
  std::vector<Process> ranks_;
  std::vector<Path> paths_;  // by scheduler and rank
  std::vector<int64_t> clock_leads_;
  int64_t num_starts_until_clock_goes_back_ = 0;
  uint64_t last_start_ = 0;
  uint64_t last_process_ = 0;
  std::map<uint64_t, uint64_t> starts_by_number_;  // start of the scheduler that asked under it
  std::optional<int32_t> last_ready_;              // index of the scheduler
  uint64_t last_ready_start_ = 0;
  Instant last_ready_at_ = 0;
  std::optional<Overlap> overlap_;
  std::optional<Instant> several_admit_since_;
  Instant scheduler_fault_at_ = 0;  // last fault of any scheduler
  Instant rank_fault_at_ = 0;       // end of the last rank fault; may be in the future
  Instant disturbed_at_ = 0;        // last fault of a holder, or of a scheduler that was asking
  Totals totals_;
  uint64_t trace_hash_ = 0;
  std::string failure_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_GROUP_STANDBY_SIMULATION_H_
