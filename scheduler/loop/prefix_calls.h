// PrefixCalls answers an operator's calls about pinned prefixes. A call to pin waits until the core
// has computed the prefix; other calls are answered at once.
//
// Thread safety: not thread-safe; owned by the scheduler loop. The `answer` functions run on the
//                loop's thread, so they must be quick.
// Invariants:    every call is answered exactly once.
// Errors:        kFailedPrecondition PREFIX_CACHE_OFF; kUnavailable LOADING; kInvalidArgument
//                PREFIX_TOO_SHORT and PROMPT_TOO_LONG; kResourceExhausted PINNED_SHARE,
//                PINNED_CAPACITY and TOO_MANY_PREFIXES; kInternal NON_FINITE_LOGITS and
//                WORKER_CRASH; kAborted UNPINNED; kNotFound PREFIX.
#ifndef QUIRE_SCHEDULER_LOOP_PREFIX_CALLS_H_
#define QUIRE_SCHEDULER_LOOP_PREFIX_CALLS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "scheduler/core/prefix_info.h"
#include "scheduler/step_log/recorded_core.h"

namespace quire {

struct PinCall {
  RequestId id;  // assigned by Inbox::Add
  std::vector<TokenId> token_ids;
  std::string cache_salt;
  bool waits_for_workers = false;  // true: waits for workers; false: fails if none were ever ready
  std::function<void(const absl::StatusOr<PrefixInfo>&)> answer;
};

struct UnpinCall {
  RequestId id;
  std::function<void(const absl::Status&)> answer;
};

struct ListPrefixesCall {
  std::function<void(const std::vector<PrefixInfo>&)> answer;
};

class PrefixCalls {
 public:
  // has_workers: true if an epoch is active.
  void Pin(RecordedCore& core, PinCall call, bool has_workers);
  // Calls Pin for each call that waited for workers. REQUIRES: the core has got no request since
  // these calls arrived, because the core accepts ids only in ascending order.
  void OnWorkersReady(RecordedCore& core);
  void Unpin(RecordedCore& core, const UnpinCall& call);

  // Answers each call to pin whose prefix has been computed or cannot be computed.
  void AnswerWaiting(const RecordedCore& core, bool has_workers);

  // Answers, with `status`, the calls to pin that wait for their prefix. The core keeps these
  // prefixes. Calls that wait for workers keep waiting.
  void FailWaiting(const absl::Status& status);
  // Answers all waiting calls with `status`.
  void FailAll(const absl::Status& status);

 private:
  std::vector<PinCall> waiting_;
  std::vector<PinCall> wait_for_workers_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_PREFIX_CALLS_H_
