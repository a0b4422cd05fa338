// CoreSimulation drives one SchedulerCore with random events, and a FakeWorker behind it. Beside it
// stands a model that knows nothing of blocks: for each request its true history.
//
// After every event the core checks its own invariants, and the model checks the events that came
// out:
//   - token indices of a sequence are 0, 1, 2, ... and the tokens are those of the oracle (I9,
//     I10);
//   - each sequence ends exactly once, for a reason that is true (I17), and has no token after;
//   - every plan passes the worker's own checks: blocks in range and not written twice, tables that
//     cover their tokens, limits kept, handles used only while known (I4, I5, I15);
//   - an introduction repeats exactly the committed history;
//   - the order of service, the preemptions and the shared blocks: see ScheduleAudit (I8, I14);
//   - under fair share, the service of tenants that wait together: see FairnessAudit (I18);
//   - a request ends for crashes of its workers only if it caused them, three of them alone, and
//     after five at most; kills from outside and other losses end no request;
//   - a request is refused exactly when a bound says so (I13);
//   - a block that is named as a sequence's next one has no holder and is named once (I20);
//   - the map of blocks agrees with the counts;
//   - cache events alone give the shared part of the prefix cache: see CacheEventAudit (I21);
//   - a result that does not fit the plan, comes twice or comes late is refused and changes nothing
//     (I11);
//   - no call of the core takes longer than kMaxCallNs of CPU time;
//   - when the scheduler dies, another one continues from the clients' tokens to the same end.
// Drain ends with a liveness phase: without faults every request finishes and no block stays used
// (I12).
//
// Time is virtual: a step takes longer the more tokens it has, and lost workers take time to come
// back.
//
// Thread safety: for tests, one thread.
#ifndef QUIRE_TESTS_SCHEDULER_CORE_CORE_SIMULATION_H_
#define QUIRE_TESTS_SCHEDULER_CORE_CORE_SIMULATION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/core/scheduler_core.h"
#include "scheduler/step_log/recorded_core.h"
#include "tests/scheduler/core/cache_event_audit.h"
#include "tests/scheduler/core/fairness_audit.h"
#include "tests/scheduler/core/request_model.h"
#include "tests/scheduler/core/schedule_audit.h"
#include "tests/support/fake_worker.h"
#include "tests/support/random.h"
#include "tests/support/timed.h"

namespace quire {

class CoreSimulation {
 public:
  // Draws limits, loads and fault rates from the seed, each run its own (swarm testing). With a
  // log, the core's calls are recorded. Then the scheduler does not die, because a log holds the
  // calls of one core.
  explicit CoreSimulation(uint64_t seed, const RecordedCore::Log& log = {});

  // Overrides the seed's choice of whether workers want the next blocks of sequences. The history
  // is the same either way, trace_hash included.
  void WantNextBlocks(bool wants) { wants_next_blocks_ = wants; }

  // Run and Drain return "" or the first fault.
  std::string Run(int32_t num_events);
  std::string Drain();

  uint64_t trace_hash() const { return trace_hash_; }
  const CoreStats& totals() const { return totals_; }  // of the whole run, after Drain
  // Counts sequences that grew longer than the pool behind a sliding window, and blocks before the
  // window in sequences that came back.
  int64_t num_longer_than_pool() const { return num_longer_than_pool_; }
  int64_t num_passed_blocks() const { return num_passed_blocks_; }
  int64_t num_scored() const { return num_scored_; }  // log-probabilities of prompt tokens
  int64_t num_unreachable() const { return num_unreachable_; }  // refused for their deadline
  // Where next blocks are wanted: counts blocks that slices of one token appended, and those of
  // them that the step before had named.
  int64_t num_appended() const { return num_appended_; }
  int64_t num_foreseen() const { return num_foreseen_; }
  int64_t num_resumed_tokens() const { return num_resumed_tokens_; }  // known to the next scheduler
  const CacheEventAudit& cache_events() const { return cache_events_; }
  int64_t num_events() const { return num_events_; }
  Instant elapsed() const { return now_; }                  // virtual time, from 0
  Instant time_in_steps() const { return time_in_steps_; }  // of it, with a step under way
  int64_t num_finished(FinishReason reason) const {
    return num_finished_[static_cast<size_t>(reason)];
  }

 private:
  static constexpr int32_t kVocabSize = 97;
  static constexpr uint64_t kIncarnation = 3;

  struct HandleOwner {
    RequestId id;
    int32_t sequence_index;
  };

  void Step();
  void DrawEvent();
  void AddRequest();
  void BeginLikeAnother(Request* request);
  void AskForBeams(Request* request);
  void AskForPromptLogprobs(Request* request);
  void ShrinkToFit(Request* request) const;
  void GrowToFit(Request* request) const;
  void CutToContext(Request* request) const;
  static RequestModel ModelOf(const Request& request);
  AddOutcome ExpectedOutcome(const RequestModel& model) const;
  AddOutcome OutcomeOfBounds(const RequestModel& model,
                             int64_t num_requests,
                             int64_t max_requests,
                             int64_t num_tokens,
                             int64_t max_tokens) const;
  void Abort();
  void FinishSequence();
  void PassTime();
  void Plan();
  void Apply();
  void ApplyWrongResult();
  void ExpectRefused(const StepResult& wrong);
  void SpoilScored(StepResult& answer);
  void KillWorkers();
  void OnCrash();
  void LoseWorkers();
  void LoseScheduler();
  void Resume(const RequestModel& before);
  void LoseTail(const Request& request, SequenceModel* sequence);
  void BeginEpoch();

  StepLimits DrawLimits();
  std::optional<StepResult> AnswerWithFaults();
  bool IsAlone(uint64_t id) const;
  void DrawPoison(int32_t max_tokens, RequestModel* request);
  void CheckSuspects(const StepPlan& plan);
  void OnPoisonComputed();
  void DrawFailedSwapIns(const StepPlan& plan);
  void StopOneSequence(RequestModel& request);
  bool LacksBlock() const;
  // REQUIRES: the core has applied the result, and its events are not taken yet. `before`: the
  // core's stats before it applied the result.
  void OnApplied(const StepResult& result, const CoreStats& before);
  void CheckPlan(const StepPlan& plan);
  void CheckNextBlocks(const StepPlan& plan);
  void CheckIntroduction(const SequenceIntroduction& introduction);
  bool MayIntroduce(const SequenceIntroduction& introduction) const;
  void TakeEvents();
  void OnToken(const TokenCommitted& event);
  void OnPromptScored(const PromptScored& event);
  void OnFinished(const SequenceFinished& event);
  bool IsTrueReason(const RequestModel& request,
                    const SequenceModel& sequence,
                    FinishReason reason) const;
  bool IsTrueReasonOfBeams(const RequestModel& request, const SequenceFinished& event) const;
  bool HasStopped(const RequestModel& request, const SequenceModel& sequence) const;
  bool IsFull(const RequestModel& request, const SequenceModel& sequence) const;
  bool Fits(const RequestModel& request) const;
  void CheckNobodyIsOverdue();
  void CheckCounts();
  void CheckCacheEvents();
  void CheckBlockMap(int32_t max_cells);
  RequestModel* AnyRequest();
  bool HasLiveRequest() const;
  Instant DurationOf(const StepPlan& plan) const;

  void Trace(uint64_t word);
  void Expect(bool condition, const std::string& what);
  void ExpectNone(const std::string& fault) { Expect(fault.empty(), fault); }

  Random random_;
  const CoreConfig config_;
  Timed<RecordedCore> core_;            // another one after the scheduler's death
  std::optional<FakeWorker> worker_;    // while an epoch is active
  std::optional<ScheduleAudit> audit_;  // likewise
  FairnessAudit fairness_;
  CacheEventAudit cache_events_;
  StepLimits limits_;
  uint64_t group_epoch_ = 0;
  bool limits_known_ = false;
  bool was_crash_ = false;  // how the workers were lost last
  bool has_faults_ = true;
  int32_t num_free_planned_ = 0;  // blocks, by the time of the unanswered plan
  Instant now_ = 0;
  Instant time_in_steps_ = 0;
  uint64_t next_id_ = 1;
  RequestModels requests_;
  std::vector<CacheDomain> domains_ = {{}};   // by id, of every request that was queued
  std::vector<HandleOwner> owner_of_handle_;  // [max_sequences], as introduced last
  std::optional<StepPlan> plan_;              // unanswered
  size_t num_started_ = 0;                    // in it, for the first time
  std::optional<StepResult> last_result_;     // applied
  std::optional<StepResult> lost_result_;     // of a step that the workers did not live to answer

  Instant step_duration_;  // of a step without tokens
  Instant copy_duration_;  // of a block that is swapped
  // Drawn once from the seed. A rate of n means that one event in n is of this kind.
  int32_t mean_prompt_;
  int32_t mean_output_;
  int32_t abort_rate_;
  int32_t loss_rate_;
  int32_t non_finite_rate_;
  int32_t deadline_rate_;
  int32_t add_rate_;
  int32_t num_words_;       // distinct tokens of prompts
  int32_t max_sequences_;   // of a request
  int32_t sliding_window_;  // the model's: every epoch has it
  bool is_tight_;           // pools and steps are small, and one request may need all of them
  // A generator of its own, so that the other draws stay the same.
  Random swap_faults_;
  int32_t swap_in_failure_rate_;          // of swap-ins, one in so many
  std::vector<BlockId> failed_swap_ins_;  // of the unanswered plan
  uint64_t returning_id_ = 0;             // whose they are
  Random deaths_;                         // likewise, of the scheduler
  int32_t death_rate_;
  Random poison_draws_;  // likewise
  int32_t poison_rate_;  // of requests, one in so many
  Random loss_causes_;   // likewise
  Random score_draws_;   // likewise
  bool wants_next_blocks_;
  int32_t blocks_per_page_;

  std::string failure_;
  uint64_t trace_hash_ = 0;
  int64_t num_events_ = 0;
  int64_t num_longer_than_pool_ = 0;
  int64_t num_passed_blocks_ = 0;
  int64_t num_scored_ = 0;
  int64_t num_resumed_tokens_ = 0;
  std::map<SequenceHandle, BlockId> next_blocks_;  // as the last plan named them
  int64_t num_appended_ = 0;
  int64_t num_foreseen_ = 0;
  CoreStats totals_;
  int64_t num_unreachable_ = 0;
  int64_t num_finished_[9] = {};
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_CORE_CORE_SIMULATION_H_
