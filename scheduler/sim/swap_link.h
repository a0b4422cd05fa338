// SwapLink is the way between the pool and host memory in virtual time: one copy engine for each
// direction, each takes its orders one after the other and works beside the steps.
//
// Thread safety: not thread-safe.
// Units:         nanoseconds of virtual time.
#ifndef QUIRE_SCHEDULER_SIM_SWAP_LINK_H_
#define QUIRE_SCHEDULER_SIM_SWAP_LINK_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "common/base/clock.h"
#include "common/step/step_limits.h"
#include "common/step/step_plan.h"
#include "scheduler/sim/cost_model.h"
#include "scheduler/sim/swap_cost.h"

namespace quire {

class SwapLink {
 public:
  SwapLink(const Platform& platform, BlockLayout layout, const StepLimits& limits);

  // Takes the swaps of a plan that is executed from now on. Returns when its slices can begin: the
  // copies are handed over first, and blocks that come in are used at once. A plan without slices
  // waits for everything.
  Instant Begin(const StepPlan& plan, Instant now);

  // The last step of those up to last_step_id whose swaps are done by now.
  uint64_t SwapsDone(uint64_t last_step_id, Instant now);

 private:
  struct Transfer {
    uint64_t step_id = 0;
    Instant done_at = 0;
  };

  // Appends a transfer to an engine's queue; returns when it has been handed over.
  Instant Start(int64_t num_blocks, uint64_t step_id, Instant now, Instant* engine_free_at);
  // When what lies in the host blocks of the swaps has arrived there.
  Instant WrittenAt(const std::vector<BlockSwapIn>& swaps) const;

  Platform platform_;
  BlockLayout layout_;
  int32_t block_size_tokens_;
  Instant out_free_at_ = 0;
  Instant in_free_at_ = 0;
  std::vector<Instant> written_at_;  // by host block
  std::deque<Transfer> under_way_;   // in the order of their orders
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_SWAP_LINK_H_
