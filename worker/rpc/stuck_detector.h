// StuckDetector decides when a worker must end its process because the executor makes no progress.
// A thread that hangs cannot be freed from inside the process, but a new process can replace this
// one. The condition depends on what the executor does:
//
//   a step             a newer epoch or the shutdown waits for the step to end, and the step makes
//                      no progress. While nothing waits, a step never ends the process.
//   an epoch begins    no progress until the time limit, which leaves time to allocate the pools
//                      and to connect to the other ranks
//   nothing (IDLE)     tasks are queued, and the executor neither begins nor ends one
//   the model loads    never: the supervisor watches loading
//
// Thread safety: one caller at a time.
#ifndef QUIRE_WORKER_RPC_STUCK_DETECTOR_H_
#define QUIRE_WORKER_RPC_STUCK_DETECTOR_H_

#include <cstdint>

#include "common/base/clock.h"
#include "worker/rpc/worker_progress.h"

namespace quire {

class StuckDetector {
 public:
  // An executor that has work counts as hung after this time without progress, or later while an
  // epoch begins.
  static constexpr Instant kMaxStandstill = 10 * kNanosPerSecond;
  // Added to kMaxStandstill while an epoch begins. Covers connecting to the other ranks, which has
  // its own timeout, and joining the ranks' devices.
  static constexpr Instant kMaxMeeting = 20 * kNanosPerSecond;
  // Lower bound on the rate of allocating an epoch's pools; pinned memory is the slowest. The time
  // that the pools take at this rate is added too.
  static constexpr int64_t kMinPoolBytesPerSecond = int64_t{256} << 20;
  // Upper bound on the time that one observation adds to the standstill. If more time has passed
  // since the previous observation, the whole process was stopped meanwhile, the executor too.
  static constexpr Instant kMaxGap = kNanosPerSecond;

  // Adds an observation. Returns true if the process must end.
  bool Observe(Instant now, const WorkerProgress::State& state);

  // Returns true if, at the last observation, the executor had made no progress in its work for too
  // long. Even then Observe can return false: see "a step" in the table above.
  bool stands_still() const { return stands_still_; }

 private:
  Instant last_ = 0;  // 0: no observation yet
  Instant standstill_ = 0;
  bool stands_still_ = false;
  uint64_t progress_ = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_STUCK_DETECTOR_H_
