// ScheduleAudit follows the plans of one epoch and checks rules that neither the tokens nor the
// worker can show. Tokens are right in any order of computing, and a block that is shared across
// salts holds the right tokens too.
//   - order: a preempted request is behind all requests that run on. In the mode that chooses the
//     cheapest it is behind one of them and ranked like the others. First come first served, the
//     oldest request computes in every step, or waits and no request starts (I14);
//   - progress: while it is the first, a request ends within a number of steps that follows from
//     the work that was there (I14);
//   - overtaking: see overtaking_audit.h (I19). Until the overtaking requests have computed their
//     prompts, the oldest waiting request may wait on;
//   - watermark: if others run, a request that starts leaves the watermark's blocks free;
//   - suspects: while there is one, all slices of a step belong to one request. Suspects are served
//     out of turn, so the order is not checked in their epoch; the bound of steps is;
//   - sharing: cached blocks come from a request of the same salt, and neither of them bypasses the
//     cache (I8).
//
// Thread safety: for tests, one thread.
// Cost:          O(handles + live requests) per call.
#ifndef QUIRE_TESTS_SCHEDULER_CORE_SCHEDULE_AUDIT_H_
#define QUIRE_TESTS_SCHEDULER_CORE_SCHEDULE_AUDIT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/step/step_limits.h"
#include "common/step/step_plan.h"
#include "scheduler/core/core_config.h"
#include "scheduler/core/core_stats.h"
#include "tests/scheduler/core/overtaking_audit.h"
#include "tests/scheduler/core/request_model.h"
#include "tests/support/fake_worker.h"

namespace quire {

class ScheduleAudit {
 public:
  // swap_delay_steps: as the worker's.
  ScheduleAudit(const CoreConfig& config, const StepLimits& limits, int32_t swap_delay_steps);

  // The On... functions that return a string return "" or the fault.

  // The plan before the worker executes it; stats are the core's after planning.
  std::string OnPlan(const StepPlan& plan, const RequestModels& requests, const CoreStats& stats);

  // The worker has executed the plan. domains: by id, of finished requests too.
  std::string OnExecuted(const StepPlan& plan,
                         const FakeWorker& worker,
                         const std::vector<CacheDomain>& domains) const;

  // The core has taken the answer in.
  std::string OnApplied(const RequestModels& requests);

  // A request is computed again after a fault, and may wait for newer ones until they end.
  void OnRecomputed() { first_id_.reset(); }

 private:
  using Rank = std::pair<int64_t, uint64_t>;

  struct Owner {
    uint64_t id = 0;
    int32_t sequence_index = 0;
  };

  std::set<uint64_t> TakeReleases(const std::vector<SequenceHandle>& releases,
                                  const RequestModels& requests);
  std::set<uint64_t> TakeUnknown(const RequestModels& requests, const CoreStats& stats);
  std::string CheckOrder(const std::set<uint64_t>& preempted, const RequestModels& requests) const;
  bool IsInOrder(uint64_t preempted_id, const RequestModels& requests) const;
  std::string CheckFirstComputes(const StepPlan& plan,
                                 const std::set<uint64_t>& started,
                                 const RequestModels& requests,
                                 const CoreStats& stats) const;
  Rank RankOf(const Request& request) const;
  const RequestModel* FirstLive(const RequestModels& requests) const;
  std::string CheckAlone(const StepPlan& plan) const;
  std::string CheckIntroductions(const StepPlan& plan) const;
  std::string CheckWatermark(const std::set<uint64_t>& started, const CoreStats& stats) const;
  std::set<uint64_t> Running() const;

  const CoreConfig config_;
  const bool is_cheapest_chosen_;
  const StepLimits limits_;
  const int32_t swap_delay_steps_;
  std::vector<std::optional<Owner>> owners_;   // by handle
  std::set<uint64_t> has_started_;             // and was not preempted since
  std::map<uint64_t, int64_t> start_numbers_;  // of this epoch, by id
  OvertakingAudit overtaking_;
  std::optional<uint64_t> first_id_;
  int64_t num_steps_left_ = 0;  // of the first
  bool had_suspect_ = false;    // in this epoch
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_CORE_SCHEDULE_AUDIT_H_
