// ServeInWindows serves requests in virtual time from KV memory that is mapped as they grow: a
// fixed number run side by side, whoever ends makes room for the next one. A prompt is computed in
// a step of its own, between two in which all running requests decode. Attention reads windows
// without a block table.
//
// Thread safety: calls share nothing.
#ifndef QUIRE_SCHEDULER_SIM_WINDOW_RUN_H_
#define QUIRE_SCHEDULER_SIM_WINDOW_RUN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/clock.h"
#include "scheduler/sim/cost_model.h"
#include "scheduler/sim/swap_cost.h"
#include "scheduler/sim/trace.h"
#include "scheduler/sim/virtual_memory.h"

namespace quire {

struct WindowRunConfig {
  Platform platform;
  BlockLayout layout = BlockLayout::kLayerMajor;
  int64_t page_bytes = kCudaPageBytes;
  int32_t block_size_tokens = 16;  // of the block-major layout
  int32_t batch = 1;               // requests side by side
  MapperOptions mapper;
  // Mapping takes no time: what is left is what it costs.
  bool maps_at_no_cost = false;
};

// The steps of one kind.
struct WindowSteps {
  std::vector<Instant> durations;
  std::vector<Instant> waits;    // for mappings, in these
  int64_t num_tokens = 0;        // computed
  int64_t num_pages_mapped = 0;  // on their path or beside them, of each GPU
  Instant total = 0;             // sums of the above
  Instant waited = 0;
};

struct WindowRunResult {
  WindowSteps prefill;
  WindowSteps decode;
  MapperCounts counts;
  int64_t most_mappings = 0;
  // The most that was mapped for a request and not filled, of all GPUs, at the end of a step.
  int64_t most_wasted_bytes = 0;
};

// Arrivals are not looked at: requests begin in their order. Errors: kResourceExhausted when the
// pool is too small for those that run; the serving layer would preempt.
absl::StatusOr<WindowRunResult> ServeInWindows(const WindowRunConfig& config,
                                               const std::vector<SimRequest>& requests);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_WINDOW_RUN_H_
