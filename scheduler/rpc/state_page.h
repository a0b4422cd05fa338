// StatePage is AdminService.GetState for a page that must not wait for the loop. It returns the
// loop's last moment and asks the loop for the next one. So a page that polls every second shows
// the state of a second ago.
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
  // Maximum age of a moment that is shown. An older one means that no page has polled for so long,
  // or that the loop does not answer.
  static constexpr int64_t kMaxAgeNs = 5 * kNanosPerSecond;

  // All arguments must outlive the page. The loop may answer after the page is destroyed.
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
