// StateCalls answers calls for the state of the loop with one moment of it, made of what the loop
// has published. A moment is made on demand and at most four times a second: without calls it costs
// nothing, and many calls cost little more than one.
//
// Thread safety: LoopState is a value type. StateCalls is not thread-safe; owned by the scheduler
//                loop, which also makes the answers: they must be quick.
// Invariants:    every call is answered exactly once.
// Cost:          a moment costs one SchedulerCore::block_map.
#ifndef QUIRE_SCHEDULER_LOOP_STATE_CALLS_H_
#define QUIRE_SCHEDULER_LOOP_STATE_CALLS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "scheduler/core/block_map.h"
#include "scheduler/core/core_stats.h"
#include "scheduler/loop/loop_observer.h"
#include "scheduler/loop/output_router.h"
#include "scheduler/loop/swap_bytes.h"
#include "scheduler/step_log/recorded_core.h"

namespace quire {

// Sums of StepObservation's fields over all steps since the start.
struct StepTotals {
  int64_t num_steps = 0;
  int64_t plan_ns = 0;
  int64_t send_ns = 0;
  int64_t round_trip_ns = 0;
  int64_t apply_ns = 0;
  int64_t publish_ns = 0;
  StepTimings worker;

  void Add(const StepObservation& step);
};

// One moment. It is consistent: the blocks of the map are those that stats count.
struct LoopState {
  Instant taken_at = 0;
  CoreStats stats;
  SwapBytes swap_bytes;
  StepTotals steps;
  BlockMap block_map;
  // The clients' ids of block_map.holders; empty for a holder without one.
  std::vector<std::string> request_ids;
};

struct GetStateCall {
  std::function<void(const std::shared_ptr<const LoopState>&)> answer;
};

class StateCalls {
 public:
  // Bounds a map, however large the pool.
  static constexpr BlockMapLimits kLimits = {.max_cells = 1024, .max_holders = 24};
  static constexpr int64_t kIntervalNs = kNanosPerSecond / 4;

  void Add(GetStateCall call) { waiting_.push_back(std::move(call)); }

  // Answers all waiting calls with the moment that the arguments describe, or with one that is less
  // than kIntervalNs older.
  void AnswerWaiting(const RecordedCore& core,
                     const OutputRouter& router,
                     const StepTotals& steps,
                     const SwapBytes& swap_bytes,
                     Instant now);

 private:
  std::vector<GetStateCall> waiting_;
  std::shared_ptr<const LoopState> last_;  // shared with answered calls
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_STATE_CALLS_H_
