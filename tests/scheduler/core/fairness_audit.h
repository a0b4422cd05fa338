// FairnessAudit follows the service of tenants under fair share while requests of theirs wait to
// start. Service is prompt tokens plus twice the output tokens.
//
// While two tenants both wait, their service differs by at most twice the cost that one tenant had
// under way at once (I18).
//
// Thread safety: for tests, one thread.
// Cost:          Check O(live requests + tenants squared).
// Source:        Sheng et al. 2024 (arXiv 2401.00588), theorem 4.4: twice the bound of the
//               counters.
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

  // Returns "" or the fault. Call it after every event.
  std::string Check(const RequestModels& requests);

 private:
  std::map<std::string, int64_t> service_;
  // The lead of the first tenant over the second when both began to wait.
  std::map<std::pair<std::string, std::string>, int64_t> leads_;
  int64_t most_under_way_ = 0;
};

}  // namespace quire

#endif  // QUIRE_TESTS_SCHEDULER_CORE_FAIRNESS_AUDIT_H_
