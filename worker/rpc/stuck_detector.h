// StuckDetector decides when a worker must end its process, because the executor stands still while
// a task waits for it. A thread that hangs cannot be freed from inside the process, but a new
// process can replace it. The condition depends on the executor's work:
//
//   a step             no progress, while a newer epoch or the shutdown waits. A step that makes
//                      progress, or that nothing waits for, is never given up.
//   an epoch begins    no progress for longer than its pools and the other ranks can take
//   nothing (IDLE)     the executor has tasks, and neither begins nor ends one
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
  // Longest time without progress; all work of a live executor makes progress more often.
  static constexpr Instant kMaxStandstill = 10 * kNanosPerSecond;
  // Beginning an epoch counts no progress, so its time is bounded. kMaxMeeting: to meet the other
  // ranks, which has its own timeout, and to join their devices.
  static constexpr Instant kMaxMeeting = 20 * kNanosPerSecond;
  // Lower bound on the rate at which pools are then allocated; pinned memory is the slowest.
  static constexpr int64_t kMinPoolBytesPerSecond = int64_t{256} << 20;
  // Upper bound on what one gap between two observations adds to the standstill. In a longer gap
  // the whole process was stopped, the executor included.
  static constexpr Instant kMaxGap = kNanosPerSecond;

  // Adds an observation. Returns true if the process must end.
  bool Observe(Instant now, const WorkerProgress::State& state);

  // Returns true if at the last observation the executor had stood still for too long, whether or
  // not anything waits for its work.
  bool stands_still() const { return stands_still_; }

 private:
  Instant last_ = 0;  // 0: no observation yet
  Instant standstill_ = 0;
  bool stands_still_ = false;
  uint64_t progress_ = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_STUCK_DETECTOR_H_
