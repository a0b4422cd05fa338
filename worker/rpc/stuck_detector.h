// StuckDetector decides when a worker has to end itself: its executor stands still while somebody
// waits for it to go on. Nothing inside the process can free a thread that hangs; a new process can
// take its place. What the executor does decides what is a standstill:
//
//   a step             no progress, and a newer epoch or the end waits. A step that makes progress
//                      is never given up, however long it takes, nor one that nobody waits for.
//   an epoch begins    no progress for longer than its pools and the other ranks can take
//   nothing (IDLE)     it has tasks, and neither begins nor ends one
//   the model loads    never: whoever started the process looks at that
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
  // Standing still for so long is no longer work.
  static constexpr Instant kMaxStandstill = 10 * kNanosPerSecond;
  // Beginning an epoch makes no progress that is counted. It meets the other ranks, which has a
  // limit of its own, joins their devices, and takes memory: pinning that of the host is slowest.
  static constexpr Instant kMaxMeeting = 20 * kNanosPerSecond;
  static constexpr int64_t kMinPoolBytesPerSecond = int64_t{256} << 20;
  // More than this between two observations is not counted: the whole process was stopped, and the
  // executor with it.
  static constexpr Instant kMaxGap = kNanosPerSecond;

  // What is seen now. True: the process must end.
  bool Observe(Instant now, const WorkerProgress::State& state);

  // Of the last observation: whether it has stood still for so long, awaited or not.
  bool stands_still() const { return stands_still_; }

 private:
  Instant last_ = 0;  // 0: nothing was observed
  Instant standstill_ = 0;
  bool stands_still_ = false;
  uint64_t progress_ = 0;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_STUCK_DETECTOR_H_
