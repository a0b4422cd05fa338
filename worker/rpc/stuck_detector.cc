#include "worker/rpc/stuck_detector.h"

#include <algorithm>

namespace quire {
namespace {

// Returns true if the executor has work that must make progress.
bool IsAtWork(const WorkerProgress::State& state) {
  switch (state.report.phase()) {
    case v1::WORKER_PHASE_EXECUTING:
    case v1::WORKER_PHASE_BEGINNING_EPOCH:
      return true;
    case v1::WORKER_PHASE_IDLE:
      return state.num_tasks > 0;
    default:
      return false;
  }
}

// Returns false if the executor may stand still, because it executes a step and nothing waits for
// the step's end (WorkerProgress::AddWaiter).
bool IsAwaited(const WorkerProgress::State& state) {
  return state.num_waiters > 0 || state.report.phase() != v1::WORKER_PHASE_EXECUTING;
}

Instant MaxStandstill(const WorkerProgress::State& state) {
  if (state.report.phase() != v1::WORKER_PHASE_BEGINNING_EPOCH) {
    return StuckDetector::kMaxStandstill;
  }
  const int64_t pool_seconds = state.pool_bytes / StuckDetector::kMinPoolBytesPerSecond;
  return StuckDetector::kMaxStandstill + StuckDetector::kMaxMeeting +
         pool_seconds * kNanosPerSecond;
}

}  // namespace

bool StuckDetector::Observe(Instant now, const WorkerProgress::State& state) {
  const bool is_still = IsAtWork(state) && last_ != 0 && state.report.progress() == progress_;
  standstill_ = is_still ? standstill_ + std::min(now - last_, kMaxGap) : 0;
  progress_ = state.report.progress();
  last_ = now;
  stands_still_ = standstill_ >= MaxStandstill(state);
  return stands_still_ && IsAwaited(state);
}

}  // namespace quire
