// SwapLink models the copies between the pool and host memory in virtual time. Each direction has
// one copy engine, which copies in the order of submission, while steps run.
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

  // Submits the swaps of a plan whose execution begins at `now`. Returns the time at which the
  // plan's slices can begin: by then, all copies are submitted and all swapped-in blocks have
  // arrived. For a plan without slices, returns the time at which all copies are done.
  Instant Begin(const StepPlan& plan, Instant now);

  // Returns the highest step id up to which all swaps are done at `now`; last_step_id if no swap is
  // under way.
  uint64_t SwapsDone(uint64_t last_step_id, Instant now);

 private:
  struct Transfer {
    uint64_t step_id = 0;
    Instant done_at = 0;
  };

  // Appends a transfer to a copy engine's queue. Returns the time at which the transfer has been
  // submitted.
  Instant Start(int64_t num_blocks, uint64_t step_id, Instant now, Instant* engine_free_at);
  // Returns the time at which all host blocks of these swap-ins have been written.
  Instant WrittenAt(const std::vector<BlockSwapIn>& swaps) const;

  Platform platform_;
  BlockLayout layout_;
  int32_t block_size_tokens_;
  Instant out_free_at_ = 0;
  Instant in_free_at_ = 0;
  std::vector<Instant> written_at_;  // for each host block: time of its last write
  std::deque<Transfer> under_way_;   // transfers in the order of submission
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_SWAP_LINK_H_
