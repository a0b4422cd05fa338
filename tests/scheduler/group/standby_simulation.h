// StandbySimulation drives 2 to 4 real WorkerGroups, each of a scheduler of its own, over the same
// 1 to 8 ranks in virtual time. A rank is a process with the worker's SchedulerClaim and StepOrder,
// and an executor that meets the other ranks. The network between has connections that break late.
// The schedulers have no core: a loop plans one step after the other. Faults, drawn from the seed:
//   - a scheduler dies and starts again with the incarnation of its clock, which may be off or have
//     gone back by an hour; or it is stopped and goes on;
//   - the way between a scheduler and a rank, or all ranks, is cut for a while;
//   - a rank's process dies and is replaced, or is stopped and goes on;
//   - several of these come within milliseconds of each other, or of what a scheduler just did.
//
// It checks that
//   - never do two commit: no rank executes a step of a scheduler that a newer one has superseded,
//     and a scheduler commits no step that it sent after another one was ready;
//   - never is there none for long: one is ready within kMaxGap of the last fault, if there is one
//     that can reach all ranks;
//   - two are ready at one moment only until the superseded one can know;
//   - who is ready changes only after a fault, and not because a rank died;
//   - several take requests at one moment only until all but one can know;
//   - a standby asks for no workers that all hear their scheduler, and stands by all the while;
//   - a standby says that it is one, and so does a superseded scheduler;
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
    Instant start_spread = 0;  // all schedulers start within
    bool has_faults = true;
    bool is_verbose = false;  // what happens goes to standard error
  };
  static Setup DrawSetup(uint64_t seed);

  StandbySimulation(const Setup& setup, uint64_t seed);

  // Each returns "" or what was wrong. Drain: everything is mended, and one is ready and stays so.
  std::string Run(Instant until);
  std::string Drain();

  int32_t NumReady() const;
  // Exactly one scheduler is ready, and all others have reported that they stand by.
  bool IsSettled() const;

  struct Totals {
    Instant elapsed = 0;  // virtual
    int64_t num_faults = 0;
    int64_t num_starts = 0;
    int64_t num_ready = 0;
    int64_t num_takeovers = 0;  // another scheduler was ready before
    int64_t num_standbys = 0;
    int64_t num_superseded = 0;
    int64_t num_renamed = 0;   // asked under a number that is not of its clock
    int64_t num_overlaps = 0;  // two were ready at one moment
    int64_t num_commits = 0;
    int64_t num_refused_steps = 0;
    Instant longest_overlap = 0;
    Instant longest_gap = 0;  // none ready, though one could be
  };
  const Totals& totals() const { return totals_; }
  uint64_t trace_hash() const { return trace_hash_; }

 private:
  // Of the steady clocks, so that no time is 0.
  static constexpr Instant kBegan = 1000 * kNanosPerSecond;

  enum class End : uint8_t { kWorker, kScheduler };

  // One connection of a scheduler to a rank.
  struct Connection {
    int32_t scheduler = 0;
    uint64_t start = 0;  // of the scheduler
    LinkId link;
    uint64_t incarnation = 0;  // of its Watch call
    uint64_t process = 0;      // at the other end; 0: it is not there yet
    bool is_established = false;
    bool is_closed = false;   // by the scheduler
    bool is_dead = false;     // nothing passes any more
    bool is_watched = false;  // the Watch call is open, for all that the worker knows
    bool is_told = false;     // the scheduler knows that it is dead
    Instant last_arrival[2] = {0, 0};
    std::vector<std::function<void()>> held;  // by a cut, in order
  };
  using ConnectionPtr = std::shared_ptr<Connection>;

  struct Path {
    bool is_cut = false;
    uint64_t num_cuts = 0;
    uint64_t num_breaks = 0;
    bool is_broken = false;  // cut, or an end of it is stopped
    std::vector<ConnectionPtr> connections;
  };

  struct Task {
    ConnectionPtr connection;
    StepPlan plan;  // step_id 0: an epoch begins
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
    Instant heard_at = 0;     // the holder
    Instant heard_since = 0;  // without a gap
    uint64_t progress = 0;
    std::deque<Task> tasks;                                  // the front one is being done
    uint64_t task = 0;                                       // its number
    std::optional<std::pair<uint64_t, uint64_t>> meets_for;  // incarnation and epoch
    std::vector<std::function<void()>> unread;               // what came while it was stopped
  };

  // What a worker said last, over the present link.
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
    bool has_requests = false;  // of an epoch that was ready: it takes more
    bool is_ready = false;      // as it says
    std::unique_ptr<WorkerGroup> group;
    std::vector<ConnectionPtr> connections;  // by rank
    std::vector<std::optional<Told>> told;   // by rank
    std::optional<StepPlan> plan;
    Instant sent_at = 0;
    Instant plans_at = 0;
    uint64_t group_epoch = 0;
    uint64_t last_step = 0;
    uint64_t standby_for = 0;
    uint64_t last_asked = 0;  // the number
    Instant asked_at = 0;
    std::set<uint64_t> numbers;
    uint64_t must_say_of = 0;  // the one that has the workers
    std::optional<Instant> must_say_since;
    Instant hit_at = 0;  // by a fault, or its end
    Instant continued_at = 0;
    Instant ready_at = 0;
    std::optional<Instant> first_rank_fault_at;  // since then
    Instant lost_at = 0;                         // the epoch that was ready last
    bool was_lost_to_rank = false;               // no scheduler had a fault before
    std::vector<std::function<void()>> unread;
  };

  struct Overlap {
    int32_t older = 0;
    int32_t newer = 0;
    Instant began_at = 0;
  };

  // Time.
  void At(Instant when, std::function<void()> event);
  void Every(Instant interval, std::function<bool()> event);  // until it is false
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
  // Unless the process or its task is another one by then.
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
  void Aim();  // a fault may come right after what a scheduler has just done
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
  void AuditWhatIsSaid(Scheduler& scheduler);
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
  std::map<std::pair<Instant, uint64_t>, std::function<void()>> events_;  // by time and order
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
  std::map<uint64_t, uint64_t> starts_by_number_;  // of schedulers that asked
  std::optional<int32_t> last_ready_;              // the scheduler
  uint64_t last_ready_start_ = 0;
  Instant last_ready_at_ = 0;
  std::optional<Overlap> overlap_;
  std::optional<Instant> several_admit_since_;
  Instant scheduler_fault_at_ = 0;  // the last one of any
  Instant rank_fault_at_ = 0;       // until it is over, so it may be in the future
  Instant disturbed_at_ = 0;        // who has the workers met with a fault
  Totals totals_;
  uint64_t trace_hash_ = 0;
  std::string failure_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_GROUP_STANDBY_SIMULATION_H_
