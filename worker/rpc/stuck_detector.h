// StuckDetector decides when a worker must end its process because the executor makes no progress.
// A thread that hangs cannot be freed from inside the process, but a new process can replace this
// one. The condition depends on what the executor does:
//
//   a step             a newer epoch or the shutdown waits, and the step makes no progress. A step
//                      never ends the process while it makes progress, or while nothing waits.
//   an epoch begins    no progress for longer than allocating the pools and connecting to the
//                      other ranks can take
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
  // Upper bound on the time in which a live executor with work makes no progress.
  static constexpr Instant kMaxStandstill = 10 * kNanosPerSecond;
  // No progress is counted while an epoch begins, so the whole beginning has a time limit. This
  // part of the limit covers connecting to the other ranks, for which the executor has its own
  // timeout, and joining the ranks' devices.
  static constexpr Instant kMaxMeeting = 20 * kNanosPerSecond;
  // Lower bound on the rate at which an epoch's pools are allocated; allocating pinned memory is
  // the slowest. The time that the pools take at this rate is added to kMaxMeeting.
  static constexpr int64_t kMinPoolBytesPerSecond = int64_t{256} << 20;
  // Upper bound on the time that one observation adds to the standstill. If more time has passed
  // since the previous observation, the whole process was stopped meanwhile, the executor too.
  static constexpr Instant kMaxGap = kNanosPerSecond;

  // Adds an observation. Returns true if the process must end.
  bool Observe(Instant now, const WorkerProgress::State& state);

  // Returns true if at the last observation the executor had made no progress in its work for too
  // long. The process need not end then: see the table above.
  bool stands_still() const { return stands_still_; }

 private:
  Instant last_ = 0;  // 0: no observation yet
  Instant standstill_ = 0;
  bool stands_still_ = false;
  uint64_t progress_ = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_STUCK_DETECTOR_H_
