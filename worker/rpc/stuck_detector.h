// StuckDetector decides when a worker must end its process: the executor stands still while a task
// waits for it. A thread that hangs cannot be freed from inside the process, but a new process can
// replace it. A standstill depends on what the executor does:
//
//   a step             no progress, while a newer epoch or the shutdown waits. A step that makes
//                      progress, or that nothing waits for, is never given up.
//   an epoch begins    no progress for longer than its pools and the other ranks can take
//   nothing (IDLE)     the executor has tasks, and neither begins nor ends one
//   the model loads    never: the supervisor watches that
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
  // Any work makes progress more often than this.
  static constexpr Instant kMaxStandstill = 10 * kNanosPerSecond;
  // Beginning an epoch counts no progress, so its time is bounded: to meet the other ranks, which
  // has its own timeout, and join their devices; then to allocate pools, slowest in pinned memory.
  static constexpr Instant kMaxMeeting = 20 * kNanosPerSecond;
  static constexpr int64_t kMinPoolBytesPerSecond = int64_t{256} << 20;
  // Most of the time between two observations that counts: in a longer gap the whole process was
  // stopped, the executor included.
  static constexpr Instant kMaxGap = kNanosPerSecond;

  // Adds an observation. Returns true if the process must end.
  bool Observe(Instant now, const WorkerProgress::State& state);

  // Whether the executor stood still for too long at the last observation, awaited or not.
  bool stands_still() const { return stands_still_; }

 private:
  Instant last_ = 0;  // 0: no observation yet
  Instant standstill_ = 0;
  bool stands_still_ = false;
  uint64_t progress_ = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_STUCK_DETECTOR_H_
