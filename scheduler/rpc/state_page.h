// StatePage is AdminService.GetState for a page that must not wait for the loop. It returns the
// loop's last moment and asks for the next one, so a page that polls every second is a second
// behind.
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
  // An older moment is not shown: no page has polled for so long, or the loop does not answer.
  static constexpr int64_t kMaxAgeNs = 5 * kNanosPerSecond;

  // All must outlive the page. The loop may answer after the page is destroyed.
  StatePage(const ServedModel* model, Inbox* inbox, const ServingState* state);

  // Returns a GetStateResponse as JSON, with the proto's field names and with fields that are zero.
  // Less than 64 KiB.
  std::string Json(Instant now);

 private:
  class Latest;

  const ServedModel* const model_;
  Inbox* const inbox_;
  const ServingState* const state_;
  const std::shared_ptr<Latest> latest_;  // shared with the call that waits in the inbox
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_STATE_PAGE_H_
