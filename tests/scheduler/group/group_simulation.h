// GroupSimulation drives the real WorkerGroup and SchedulerCore over 1 to 8 ranks in virtual time.
// A rank is a process with the worker's StepOrder and a FakeWorker; a network lies between. Each
// rank has its own faults, drawn from the seed:
//   - its process dies or is stopped, or its executor hangs in a step, with arbitrary reports, even
//     that it waits for another rank; the next process has another pool, or other weights until it
//     is replaced again;
//   - another scheduler takes it over, for a while or for good, or used it before it joined the
//     group; the scheduler that then stands by may be replaced by one whose clock went back; the
//     rank names impossible schedulers;
//   - messages are late, lost, duplicated, outdated, or use a connection that was given up;
//   - an answer is to another plan; a block is corrupted; a block does not come back from host
//     memory; an epoch is refused, or begins slowly.
//
// It checks that
//   - tokens are those of the true history, in order, and every request ends with all of them;
//   - a worker accepts every plan of its epoch, and an epoch is ready when all its ranks have begun
//     it, with blocks that all of them have;
//   - a result that the group reports is the result of every rank;
//   - a step that a rank has not answered is sent over the next stream to it;
//   - duplicated and outdated answers are stale and do no harm; an answer to another plan ends the
//     epoch;
//   - a rank that is stopped or hangs is lost in bounded time;
//   - a loss is a crash if and only if a process was replaced or a rank failed at the step;
//   - a scheduler gives up its requests only for one that lives;
//   - no call of the group or the core takes longer than kMaxCallNs of CPU time;
//   - once faults stop, everything completes.
//
// Thread safety: for tests, one thread.
#ifndef QUIRE_TESTS_SCHEDULER_GROUP_GROUP_SIMULATION_H_
#define QUIRE_TESTS_SCHEDULER_GROUP_GROUP_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/core/scheduler_core.h"
#include "scheduler/group/worker_group.h"
#include "tests/support/fake_worker.h"
#include "tests/support/random.h"
#include "tests/support/timed.h"
#include "worker/runtime/scheduler_claim.h"
#include "worker/runtime/step_order.h"

namespace quire {

class GroupSimulation {
 public:
  explicit GroupSimulation(uint64_t seed);

  // Return "" or the fault. Drain stops the faults and runs until all requests have ended.
  std::string Run(Instant duration);
  std::string Drain();

  struct Totals {
    Instant elapsed = 0;  // virtual
    int64_t num_faults = 0;
    int64_t num_epochs = 0;
    int64_t num_losses = 0;
    int64_t num_refusals = 0;
    int64_t num_crashes = 0;
    int64_t num_takeovers = 0;
    int64_t num_stale = 0;
    int64_t num_spoiled_found = 0;
    int64_t num_failed_swap_ins = 0;
    int64_t num_steps = 0;
    int64_t num_requests = 0;
    int64_t num_tokens = 0;
  };
  Totals totals() const;
  int32_t num_ranks() const { return static_cast<int32_t>(ranks_.size()); }
  uint64_t trace_hash() const { return trace_hash_; }

 private:
  static constexpr uint64_t kIncarnation = 7;  // with which every scheduler starts

  struct Process {
    uint64_t number = 0;  // counts starts
    bool is_alive = false;
    bool is_stopped = false;
    bool hangs_next = false;  // hangs in the next step
    bool is_hanging = false;
    WorkerPhase hanging_phase = WorkerPhase::kExecuting;  // reported while it hangs
    std::optional<int32_t> hanging_waits_for;             // rank that it then claims to wait for
    bool has_other_weights = false;
    int32_t num_blocks = 0;
    Instant loaded_at = 0;
    Instant busy_until = 0;
    uint64_t progress = 0;
    uint64_t step_id = 0;
    StepOrder order;
    SchedulerClaim claim;
    Instant other_leaves_at = 0;  // when its other scheduler, which is not simulated, leaves
    std::unique_ptr<FakeWorker> worker;
    std::vector<std::function<void()>> unread;  // messages that arrived while it was stopped
  };
  struct Rank {
    Process process;
    LinkId link;                             // dialed last
    bool is_link_open = false;               // link has not been closed
    LinkId begun_link;                       // link over which it last reported an epoch begun
    uint64_t greeted_process = 0;            // process number
    uint64_t ready_process = 0;              // process number in the last ready epoch
    bool has_answered = false;               // has answered the current plan
    bool is_to_be_sent = false;              // the plan must be sent over the opened stream
    std::map<uint64_t, uint64_t> connected;  // process number by link number
    Instant cut_until = 0;
    std::optional<std::pair<LinkId, StepResult>> last_answer;
  };
  struct Output {
    Request request;
    std::vector<std::vector<TokenId>> token_ids;  // by sequence, prompt included
    int32_t num_ended = 0;
  };

  void At(Instant when, std::function<void()> event);
  // Returns an event that is dropped if the scheduler has been replaced by then.
  std::function<void()> OfScheduler(std::function<void()> event) const;
  void Turn();  // runs the next event and the group's actions
  void Pump();
  void Do(const DialLink& dial);
  void Do(const CloseLink& close);
  void Do(const GreetWorker& greet);
  void Do(const BeginWorkerEpoch& begin);
  void Do(const OpenSteps& open);
  void Do(const BreakSteps& steps);
  void Do(const SendPlan& send);
  void Do(const ReportReady& ready);
  void Do(const ReportResult& report);
  void Do(const ReportStale& stale);
  void Do(const ReportLost& lost);
  void Do(const ReportStandby& standby);
  void Do(const ReportRefused& refused);
  void Do(const ReportAway& /*away*/) {}
  void Do(const ReportLoading& /*loading*/) {}

  // Deliver a message after a delay, unless the path is cut. A dead process breaks the connection.
  void ToWorker(LinkId link, std::function<void(Process&)> message);
  void ToGroup(LinkId link, std::function<void()> message);
  void ExpectOpen(LinkId link);
  void Break(LinkId link);
  void Report(LinkId link, uint64_t process_number);
  void Execute(LinkId link, Process& process, const StepPlan& plan);
  void AnswerStep(LinkId link, const StepResult& result, Instant delay);

  void DrawFault();
  void DrawFaultOf(Rank& rank);
  void DrawFailedSwapIns(const StepPlan& plan);
  void Kill(Rank& rank, Instant restart_after);
  void Start(Rank& rank, bool has_other_weights);
  void Stop(Rank& rank);
  void Hang(Rank& rank);
  void Spoil(Rank& rank);
  void RepeatAnswer(Rank& rank);
  void AnswerOtherPlan(Rank& rank);
  void TakeOver(Rank& rank);
  uint64_t DrawNonsense();
  void StartScheduler();
  void ForgetEpoch();
  // Expects the epoch to be over after the delay, if the rank is still in this state and no other
  // fault has come.
  void ExpectLostIn(Instant delay, const Rank& rank, bool Process::*state, const std::string& what);

  void AddRequest();
  void PlanStep();
  void TakeEvents();
  WorkerHello HelloOf(int32_t rank) const;
  Rank& RankOf(LinkId link) { return ranks_[static_cast<size_t>(link.rank)]; }
  bool HasLiveRequest() const { return !outputs_.empty(); }
  Instant Soon() { return random_.Between(1, 20) * kNanosPerMilli / 4; }
  void Trace(uint64_t word);
  void Expect(bool condition, const std::string& what);

  Random random_;
  const GroupSettings settings_;
  std::vector<Rank> ranks_;
  Timed<WorkerGroup> group_;
  Timed<SchedulerCore> core_;
  const Instant mean_fault_gap_;
  const Instant mean_request_gap_;
  const Instant step_duration_;
  std::map<std::pair<Instant, uint64_t>, std::function<void()>> events_;  // by time, then number
  uint64_t num_events_ = 0;
  Instant now_ = 0;
  bool has_faults_ = true;
  bool has_epoch_ = false;  // the core is in an epoch
  uint64_t num_schedulers_ = 0;
  bool was_ready_ = false;       // the current scheduler has been ready
  bool failed_at_step_ = false;  // a failed step ended the last epoch
  StepLimits limits_;
  std::optional<StepPlan> plan_;            // unanswered
  std::optional<StepResult> first_result_;  // of the first rank that executed plan_
  bool do_results_differ_ = false;
  std::set<BlockId> failed_swap_ins_;  // of plan_, on failing_rank_ only
  int32_t failing_rank_ = 0;
  uint64_t next_id_ = 1;
  uint64_t last_process_ = 0;
  std::map<uint64_t, Output> outputs_;  // of live requests
  bool was_stale_ = false;              // in the current turn
  bool was_lost_ = false;
  Totals totals_;
  uint64_t trace_hash_ = 0;
  std::string failure_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_GROUP_GROUP_SIMULATION_H_
