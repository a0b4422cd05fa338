// OvertakingAudit follows the plans of one epoch under first come, first served, and checks who
// passes whom: a request that starts although an older one waits that has never started.
//   - it passes a running prompt that the step has no room for, of at least four times what it has
//     to compute, and whose request has passed nobody;
//   - in each step, those that have passed get no more prompt tokens than the prompt that they
//   pass;
//   - when it has started, there are blocks and handles for all that it passed, and for the prompts
//     that are cut (I19).
// Not in an epoch with suspects, who are served out of turn.
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

  // "" or what is wrong. stats are the core's after planning.
  std::string OnPlan(const StepPlan& plan, const RequestModels& requests, const CoreStats& stats);

  // Whether one that has passed has yet to compute some of its prompt.
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

  // Those that start in this plan for the first time.
  std::set<uint64_t> Follow(const StepPlan& plan, const RequestModels& requests);
  // That waits and has never started; the largest number if there is none.
  uint64_t OldestToStart(const RequestModels& requests) const;
  void EndStep();
  // Those that may be passed: they ran before, and their prompts do not end in this step.
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
