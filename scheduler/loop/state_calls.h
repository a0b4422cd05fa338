// StateCalls answers calls that ask for the state of the loop. The answer is a snapshot (LoopState)
// of the state that the loop publishes. Snapshots are made on demand and at most four times a
// second, so that many calls cost little more than one call.
//
// Thread safety: LoopState is a value type. StateCalls is not thread-safe; owned by the scheduler
//                loop. The `answer` functions run on the loop's thread, so they must be quick.
// Invariants:    every call is answered exactly once.
// Cost:          a snapshot costs one SchedulerCore::block_map.
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

// A snapshot of one moment: block_map shows the same blocks that stats counts.
struct LoopState {
  Instant taken_at = 0;
  CoreStats stats;
  SwapBytes swap_bytes;
  StepTotals steps;
  BlockMap block_map;
  // For each entry of block_map.holders: the client's id of the request, or "".
  std::vector<std::string> request_ids;
};

struct GetStateCall {
  std::function<void(const std::shared_ptr<const LoopState>&)> answer;
};

class StateCalls {
 public:
  // Bounds the size of a BlockMap, for a pool of any size.
  static constexpr BlockMapLimits kLimits = {.max_cells = 1024, .max_holders = 24};
  static constexpr int64_t kIntervalNs = kNanosPerSecond / 4;

  void Add(GetStateCall call) { waiting_.push_back(std::move(call)); }

  // Answers all waiting calls with a snapshot of the arguments, or with the last snapshot if it was
  // taken less than kIntervalNs ago.
  void AnswerWaiting(const RecordedCore& core,
                     const OutputRouter& router,
                     const StepTotals& steps,
                     const SwapBytes& swap_bytes,
                     Instant now);

 private:
  std::vector<GetStateCall> waiting_;
  std::shared_ptr<const LoopState> last_;  // last snapshot, shared with answered calls
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_STATE_CALLS_H_
