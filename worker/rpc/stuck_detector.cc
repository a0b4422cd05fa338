#include "worker/rpc/stuck_detector.h"

#include <algorithm>

namespace quire {

bool StuckDetector::Observe(Instant now, const WorkerProgress::State& state) {
  const bool is_executing = state.report.phase() == v1::WORKER_PHASE_EXECUTING;
  const bool stands_still = is_executing && last_ != 0 && state.report.progress() == progress_;
  standstill_ = stands_still ? standstill_ + std::min(now - last_, kMaxGap) : 0;
  progress_ = state.report.progress();
  last_ = now;
  return standstill_ >= kMaxStandstill && state.num_waiters > 0;
}

}  // namespace quire
