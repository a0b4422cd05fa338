// StatePage is AdminService.GetState for a page that must not wait for the loop: it gives the last
// moment that the loop has handed out, and asks it for the next one. So whoever asks every second
// sees what was a second ago.
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
  // A moment that is older is not shown: nobody has asked for so long, or the loop does not answer.
  static constexpr int64_t kMaxAgeNs = 5 * kNanosPerSecond;

  // All must outlive the page; the inbox' loop may answer after its end.
  StatePage(const ServedModel* model, Inbox* inbox, const ServingState* state);

  // A GetStateResponse as JSON, names as in the proto, every field there; less than 64 KiB.
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
