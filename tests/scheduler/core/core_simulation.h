// CoreSimulation drives one SchedulerCore with random events, a FakeWorker behind it, and a model
// beside it that knows nothing of blocks: for each request its true history.
//
// After every event the core checks its own invariants, and the model checks what came out:
//   - token indices of a sequence are 0, 1, 2, ... and the tokens are those of the oracle (I9,
//   I10);
//   - each sequence ends exactly once, for a reason that is true (I17), and says nothing after;
//   - every plan passes the worker's own checks: blocks in range and not written twice, tables that
//     cover their tokens, limits kept, handles used only while known (I4, I5, I15);
//   - an introduction repeats exactly the committed history;
//   - the oldest request computes in every step (I14);
//   - a result that does not fit the plan is refused and changes nothing (I11).
// Drain ends with a liveness phase: without faults everything finishes and no block stays used.
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
#include "tests/scheduler/core/beam_oracle.h"
#include "tests/support/fake_worker.h"
#include "tests/support/random.h"

namespace quire {

class CoreSimulation {
 public:
  // Limits, loads and fault rates are drawn from the seed, each run its own (swarm testing).
  explicit CoreSimulation(uint64_t seed);

  // Each returns "" or what was wrong.
  std::string Run(int32_t num_events);
  std::string Drain();

  uint64_t trace_hash() const { return trace_hash_; }
  const CoreStats& totals() const { return totals_; }  // of the whole run, after Drain
  int64_t num_events() const { return num_events_; }
  int64_t num_finished(FinishReason reason) const {
    return num_finished_[static_cast<size_t>(reason)];
  }

 private:
  struct ModelSequence {
    std::vector<TokenId> token_ids;  // prompt, then output
    bool is_finished = false;
    int32_t num_non_finite = 0;  // in a row, as injected
    bool was_stopped = false;    // by FinishSequence
  };

  struct ModelRequest {
    Request request;
    std::vector<ModelSequence> sequences;
    bool was_aborted = false;
    bool had_non_finite = false;
    bool was_introduced = false;
    bool has_computed = false;
    bool lacks_capacity = false;

    std::optional<BeamOracle> beams;  // of beam search, once its first candidates are there

    bool is_finished() const;
    bool is_beam_search() const { return request.beam_search.has_value(); }
  };

  struct HandleOwner {
    RequestId id;
    int32_t sequence_index;
  };

  void Step();
  void DrawEvent();
  void AddRequest();
  void BeginLikeAnother(Request* request);
  void AskForBeams(Request* request);
  void Abort();
  void FinishSequence();
  void PassTime();
  void Plan();
  void Apply();
  void ApplyWrongResult();
  void LoseWorkers();
  void BeginEpoch();

  StepLimits DrawLimits();
  StepResult AnswerWithFaults();
  void CheckPlan(const StepPlan& plan);
  void CheckIntroduction(const SequenceIntroduction& introduction);
  bool MayIntroduce(const SequenceIntroduction& introduction) const;
  void CheckOldestComputes(const StepPlan& plan);
  void TakeEvents();
  void OnToken(const TokenCommitted& event);
  void OnFinished(const SequenceFinished& event);
  bool IsTrueReason(const ModelRequest& request,
                    const ModelSequence& sequence,
                    FinishReason reason) const;
  bool IsTrueReasonOfBeams(const ModelRequest& request, const SequenceFinished& event) const;
  bool HasStopped(const ModelRequest& request, const ModelSequence& sequence) const;
  bool IsFull(const ModelRequest& request, const ModelSequence& sequence) const;
  bool FitsPool(const ModelRequest& request) const;
  bool FitsEver(const ModelRequest& request) const;
  void CheckNobodyIsOverdue();
  ModelRequest* AnyRequest();
  bool HasLiveRequest() const;

  void Trace(uint64_t word);
  void Expect(bool condition, const std::string& what);

  Random random_;
  SchedulerCore core_;
  std::optional<FakeWorker> worker_;  // while an epoch is active
  StepLimits limits_;
  uint64_t group_epoch_ = 0;
  bool limits_known_ = false;
  Instant now_ = 0;
  uint64_t next_id_ = 1;
  std::map<uint64_t, ModelRequest> requests_;
  std::vector<HandleOwner> owner_of_handle_;  // [max_sequences], as introduced last
  std::optional<StepPlan> plan_;              // unanswered
  std::optional<StepResult> last_result_;     // applied
  bool has_faults_ = true;

  // Drawn once: one event in so many is of this kind.
  int32_t mean_prompt_;
  int32_t mean_output_;
  int32_t abort_rate_;
  int32_t loss_rate_;
  int32_t non_finite_rate_;
  int32_t deadline_rate_;
  int32_t add_rate_;

  std::string failure_;
  uint64_t trace_hash_ = 0;
  int64_t num_events_ = 0;
  CoreStats totals_;
  int64_t num_finished_[7] = {};
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_CORE_CORE_SIMULATION_H_
