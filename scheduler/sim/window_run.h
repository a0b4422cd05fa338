// ServeInWindows serves requests in virtual time from KV memory that is mapped as they grow. A
// fixed number run side by side; a request that ends makes room for the next. A prompt is computed
// in a separate step, between two steps in which all running requests decode. Attention reads
// windows without a block table.
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
  // Mapping takes no time. The cost of mapping is the difference from a run where this is false.
  bool maps_at_no_cost = false;
};

// Totals of the prefill steps or of the decode steps.
struct WindowSteps {
  std::vector<Instant> durations;
  std::vector<Instant> waits;    // waits for mappings, part of durations
  int64_t num_tokens = 0;        // tokens computed
  int64_t num_pages_mapped = 0;  // while steps waited or beside steps, on each GPU
  Instant total = 0;             // sum of durations
  Instant waited = 0;            // sum of waits
};

struct WindowRunResult {
  WindowSteps prefill;
  WindowSteps decode;
  MapperCounts counts;
  int64_t most_mappings = 0;
  // Most bytes mapped for a request and not filled at the end of a step, summed over GPUs.
  int64_t most_wasted_bytes = 0;
};

// Ignores arrival times: requests begin in their order. Errors: kResourceExhausted if the pool is
// too small for the running requests, where the serving layer would preempt.
absl::StatusOr<WindowRunResult> ServeInWindows(const WindowRunConfig& config,
                                               const std::vector<SimRequest>& requests);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_WINDOW_RUN_H_
