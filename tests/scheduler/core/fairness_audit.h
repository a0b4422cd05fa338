// FairnessAudit follows what tenants get under fair share: their service, prompt tokens and output
// tokens twice, while requests of theirs wait that have not begun yet. Of two tenants that both
// wait all the time, neither gets more than the other by twice what the requests cost that one
// tenant had under way at once (I18).
//
// Thread safety: for tests, one thread.
// Cost:          Check O(live requests + tenants squared).
// Source:        Sheng et al. 2024 (arXiv 2401.00588), theorem 4.4: twice the bound of the
// counters.
#ifndef QUIRE_TESTS_SCHEDULER_CORE_FAIRNESS_AUDIT_H_
#define QUIRE_TESTS_SCHEDULER_CORE_FAIRNESS_AUDIT_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "scheduler/core/request.h"
#include "tests/scheduler/core/request_model.h"

namespace quire {

class FairnessAudit {
 public:
  void OnStarted(const Request& request);
  void OnSampled(const Request& request);

  // "" or what is wrong. After every event.
  std::string Check(const RequestModels& requests);

 private:
  std::map<std::string, int64_t> service_;
  // By how much the first was ahead of the second when both began to wait.
  std::map<std::pair<std::string, std::string>, int64_t> leads_;
  int64_t most_under_way_ = 0;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_CORE_FAIRNESS_AUDIT_H_
