// StatePage serves the answer of AdminService.GetState as /top.json. An HTTP page must not wait for
// the loop, so StatePage returns the loop's last snapshot (LoopState) and asks for the next
// snapshot. A browser that polls every second therefore shows the state of about a second ago.
//
// Thread safety: safe from any thread.
#ifndef QUIRE_SCHEDULER_RPC_STATE_PAGE_H_
#define QUIRE_SCHEDULER_RPC_STATE_PAGE_H_

#include <memory>
#include <string>

#include "common/base/clock.h"
#include "scheduler/loop/inbox.h"
#include "scheduler/loop/serving_state.h"
#include "scheduler/rpc/served_model.h"

namespace quire {

class StatePage {
 public:
  // Maximum age of a snapshot that is shown. If the last snapshot is older, either nobody has
  // polled for that long, or the loop does not answer.
  static constexpr int64_t kMaxAgeNs = 5 * kNanosPerSecond;

  // All arguments must outlive the page. The page may be destroyed while the loop still has a
  // GetStateCall to answer.
  StatePage(const ServedModel* model, Inbox* inbox, const ServingState* state);

  // Returns a GetStateResponse as JSON of less than 64 KiB, with the proto's field names. Fields
  // that are zero are included.
  std::string Json(Instant now);

 private:
  class Latest;

  const ServedModel* const model_;
  Inbox* const inbox_;
  const ServingState* const state_;
  const std::shared_ptr<Latest> latest_;  // shared with the GetStateCall in the inbox
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_STATE_PAGE_H_
