// ServeInWindows serves requests in virtual time. As a request grows, its KV memory is mapped into
// windows of virtual addresses (virtual_memory.h). A fixed number of requests run side by side;
// when a request ends, the next request begins. A prompt is computed in a separate step, between
// two steps in which all running requests decode. Attention reads windows without a block table.
//
// Thread safety: free functions, safe from any thread.
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
  int32_t block_size_tokens = 16;  // for the block-major layout only
  int32_t batch = 1;               // requests that run side by side
  MapperOptions mapper;
  // If true, mapping takes no time. Runs with true and with false differ by the cost of mapping.
  bool maps_at_no_cost = false;
};

// Totals of the prefill steps or of the decode steps.
struct WindowSteps {
  std::vector<Instant> durations;
  std::vector<Instant> waits;    // for each step: wait for mappings, part of the duration
  int64_t num_tokens = 0;        // computed tokens
  int64_t num_pages_mapped = 0;  // pages mapped on each GPU, while steps waited or ran
  Instant total = 0;             // sum of durations
  Instant waited = 0;            // sum of waits
};

struct WindowRunResult {
  WindowSteps prefill;
  WindowSteps decode;
  MapperCounts counts;
  int64_t most_mappings = 0;
  // Highest number of bytes that were mapped for a request but not filled at the end of a step,
  // summed over GPUs.
  int64_t most_wasted_bytes = 0;
};

// Ignores arrival times: requests begin in the order of the vector. Errors: kResourceExhausted if
// the pool is too small for the running requests (a scheduler would preempt one of them).
absl::StatusOr<WindowRunResult> ServeInWindows(const WindowRunConfig& config,
                                               const std::vector<SimRequest>& requests);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_WINDOW_RUN_H_
