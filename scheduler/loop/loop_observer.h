// LoopObserver receives the events of the loop for metrics, so that the loop needs no metrics
// library.
//
// Thread safety: called by the loop thread; must be quick.
#ifndef QUIRE_SCHEDULER_LOOP_LOOP_OBSERVER_H_
#define QUIRE_SCHEDULER_LOOP_LOOP_OBSERVER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/step/step_limits.h"
#include "common/step/step_result.h"
#include "scheduler/core/core_stats.h"
#include "scheduler/loop/swap_bytes.h"

namespace quire {

enum class RequestOutcome : uint8_t { kStop, kLength, kAborted, kExpired, kRejected, kError };

// One step, from its planning to its answer. Durations in nanoseconds.
struct StepObservation {
  int64_t plan_ns = 0;        // duration of PlanStep
  int64_t send_ns = 0;        // duration of SendStep
  int64_t round_trip_ns = 0;  // from the start of SendStep until the answer
  int64_t apply_ns = 0;       // duration of ApplyStepResult
  int64_t publish_ns = 0;     // time spent in Publish while the workers computed this step
  StepTimings worker;
  int32_t num_sequences = 0;
  int32_t num_tokens = 0;
};

// A request that ended. Durations in nanoseconds; a token's time is the time at which the loop
// began to publish it.
struct RequestObservation {
  RequestOutcome outcome = RequestOutcome::kRejected;
  std::string_view refusal;         // if kRejected: the reason, for example QUEUE_FULL
  int64_t duration_ns = 0;          // from the request's arrival to its end
  std::optional<int64_t> queue_ns;  // from arrival to the planning of the request's first step
  // From the planning of the request's first step to this stream's first token. nullopt for a beam
  // search: its tokens are known only when the search ends.
  std::optional<int64_t> prefill_ns;
  // From this stream's first token to its last token. nullopt for a beam search.
  std::optional<int64_t> decode_ns;
  int32_t num_prompt_tokens = 0;
  int32_t max_tokens = 0;
  int32_t longest_new_output = 0;               // most tokens that one sequence got in this stream
  std::vector<int32_t> num_output_tokens = {};  // per sequence; tokens of earlier streams included
};

class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  virtual void OnStep(const StepObservation& /*step*/) {}
  // latency_ns: time from a request's arrival until its first token is handed to the stream.
  virtual void OnFirstToken(int64_t /*latency_ns*/) {}
  // latency_ns: time between two consecutive tokens of a sequence. Not called for a beam search.
  virtual void OnInterToken(int64_t /*latency_ns*/) {}
  // Also called by other threads, for requests that were refused before they reached the loop.
  virtual void OnRequestEnd(const RequestObservation& /*request*/) {}
  virtual void OnStats(const CoreStats& /*stats*/, const SwapBytes& /*swap_bytes*/) {}
  // block_bytes: K and V of one block on one worker.
  virtual void OnGroupReady(const StepLimits& /*limits*/,
                            const std::string& /*kv_cache_dtype*/,
                            int64_t /*block_bytes*/) {}
  virtual void OnGroupLost() {}
  // stands_by: true if this scheduler waits for another one, which holds or may hold the workers.
  virtual void OnStandby(bool /*stands_by*/) {}
  virtual void OnStaleReply() {}
  // turn_ns: time from the end of the loop's wait for events to the end of the turn.
  virtual void OnTurn(int64_t /*turn_ns*/) {}
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_LOOP_LOOP_OBSERVER_H_
