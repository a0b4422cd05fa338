// PagedEngine serves with the production core: it adds requests, asks for plans and answers each
// plan as a worker would, with made-up tokens. The worker and the duration of a step are modeled;
// the scheduling is the production code.
//
// Thread safety: not thread-safe.
#ifndef QUIRE_SCHEDULER_SIM_PAGED_ENGINE_H_
#define QUIRE_SCHEDULER_SIM_PAGED_ENGINE_H_

#include <cstdint>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/step/step_limits.h"
#include "common/step/step_plan.h"
#include "common/step/step_result.h"
#include "scheduler/core/scheduler_core.h"
#include "scheduler/sim/candidate_model.h"
#include "scheduler/sim/simulation.h"
#include "scheduler/sim/swap_link.h"

namespace quire {

// Size of the vocabulary, large enough to give each prompt of a trace its own token.
inline constexpr int32_t kSimVocabSize = 1 << 30;

class PagedEngine : public Engine {
 public:
  // REQUIRES: Validate(config, trace) is OK for the trace that is to be served.
  PagedEngine(const SimConfig& config, const StepLimits& limits, int32_t shared_prefix_tokens);

  void Arrive(const SimRequest& request, size_t index, Instant now) override;
  bool BeginStep(Instant now, EngineStep* step) override;
  void EndStep(Instant now, std::vector<size_t>* finished) override;
  void Report(SimResult* result) const override;
  int64_t num_free_slots() const override;
  int64_t num_slots() const override;

 private:
  // The simulated worker's record of a sequence.
  struct Known {
    int32_t num_known_tokens = 0;
    int32_t num_computed_tokens = 0;
    int32_t num_candidates = 0;  // returned with each token, for beam search
  };

  // Executes the plan: fills result_ and returns the work.
  StepWork Execute(const StepPlan& plan);
  // Completes result_ for a step that ends at `now`, and gives result_ to the core.
  void Answer(Instant now);
  MemoryUse Memory() const;

  StepLimits limits_;
  int32_t shared_prefix_tokens_;
  int32_t num_sequences_;
  int32_t num_beams_;
  bool checks_invariants_;
  SchedulerCore core_;
  std::vector<Known> known_;  // indexed by the sequence's handle
  CandidateModel candidates_{1};
  SwapLink link_;
  StepResult result_;  // result of the running step
  Instant begin_ = 0;  // time at which the running step was planned
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_PAGED_ENGINE_H_
