// OvertakingAudit follows the plans of one epoch under first come, first served. A request
// overtakes if it starts while an older request waits that has never started. The rules (I19):
//   - it overtakes a running prompt that the step has no room for. That prompt has at least four
//     times as much to compute, and its request has overtaken none;
//   - in each step the overtaking prompts get no more tokens than the prompt that they overtake;
//   - when it has started, there are blocks and handles for all requests that it overtook, and for
//     the prompts that are cut.
// An epoch with suspects is not checked, because suspects are served out of turn.
//
// Thread safety: for tests, one thread.
// Cost:          O(handles + live requests) per call.
#ifndef QUIRE_TESTS_SCHEDULER_CORE_OVERTAKING_AUDIT_H_
#define QUIRE_TESTS_SCHEDULER_CORE_OVERTAKING_AUDIT_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/step/step_limits.h"
#include "common/step/step_plan.h"
#include "scheduler/core/core_config.h"
#include "scheduler/core/core_stats.h"
#include "tests/scheduler/core/request_model.h"

namespace quire {

class OvertakingAudit {
 public:
  OvertakingAudit(const CoreConfig& config, const StepLimits& limits);

  // Returns "" or the fault. `stats` are the core's after planning.
  std::string OnPlan(const StepPlan& plan, const RequestModels& requests, const CoreStats& stats);

  // Whether an overtaking request has yet to compute some of its prompt.
  bool IsPassing() const;

 private:
  struct Known {
    uint64_t id = 0;
    int32_t num_known = 0;
    int32_t num_computed = 0;
    int32_t num_in_step = 0;  // of the last plan
    bool is_new = false;      // introduced by it
    bool is_again = false;    // its request had computed before

    int32_t num_left() const { return num_known - num_computed; }
  };

  // Records the plan. Returns the requests that start in it for the first time.
  std::set<uint64_t> Follow(const StepPlan& plan, const RequestModels& requests);
  // The oldest waiting request that has never started; the largest number if there is none.
  uint64_t OldestToStart(const RequestModels& requests) const;
  void EndStep();
  // Requests that may be overtaken: they ran before, and their prompts do not end in this step.
  std::set<uint64_t> Cut(const RequestModels& requests) const;
  int64_t NumLeftBefore(uint64_t id) const;  // the step
  std::string CheckPasser(const RequestModel& passer,
                          const std::set<uint64_t>& cut,
                          const RequestModels& requests) const;
  std::string CheckShare(const std::set<uint64_t>& cut) const;
  std::string CheckRoom(uint64_t newest_passer,
                        const RequestModels& requests,
                        const CoreStats& stats) const;

  const CoreConfig config_;
  const StepLimits limits_;
  std::vector<std::optional<Known>> known_;  // by handle
  std::set<uint64_t> has_started_;           // in this epoch, ever
  std::set<uint64_t> has_passed_;
  bool had_suspect_ = false;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_CORE_OVERTAKING_AUDIT_H_
