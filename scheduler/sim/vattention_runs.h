// Simulated runs of requests in windows of virtual memory (window_run.h). `quire_sim` makes its
// versions of the vAttention paper's figures from these runs.
//
// Thread safety: free functions, safe from any thread.
// Errors:        those of ServeInWindows.
#ifndef QUIRE_SCHEDULER_SIM_VATTENTION_RUNS_H_
#define QUIRE_SCHEDULER_SIM_VATTENTION_RUNS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "scheduler/sim/window_run.h"

namespace quire {

// REQUIRES: FindPlatform knows `platform`.
WindowRunConfig WindowConfigFor(std::string_view platform, BlockLayout layout, int64_t page_bytes);

struct DecodePoint {
  int32_t batch = 0;
  double tokens_per_s = 0;
  double mapped_bytes_per_s = 0;  // on each GPU
};

// Measures decoding alone, in batches of up to 512 requests, or fewer if 512 do not fit the pool.
// Each request grows from 1,024 to 1,536 tokens.
absl::StatusOr<std::vector<DecodePoint>> SweepDecode(const WindowRunConfig& config);

// Returns the smallest batch with at least nine tenths of the highest throughput. REQUIRES: points
// is not empty.
int32_t SaturatingBatch(const std::vector<DecodePoint>& points);

// How long decode steps wait for mappings, over 4,096 steps. All requests have the same length,
// which is 16,384 tokens before the first step.
struct DecodeWaits {
  double usual_ms = 0;    // median duration of steps that do not wait
  double waiting_ms = 0;  // mean duration of steps that wait; 0: no step waits
  double longest_ms = 0;  // duration of the longest wait, without the rest of its step
  // Number of steps from the first waiting step to the second; 0: fewer than two steps wait.
  int64_t steps_apart = 0;
};
absl::StatusOr<DecodeWaits> MeasureDecodeWaits(const WindowRunConfig& config);

// Returns the percentage by which the prefill of a lone prompt takes longer if the prompt's pages
// must be mapped first.
absl::StatusOr<double> PrefillSlowdownPercent(const WindowRunConfig& config, int32_t prompt_tokens);

// Returns the rate at which the driver maps the pages of a waiting prompt, in bytes a second on
// each GPU.
absl::StatusOr<double> MappingRate(const WindowRunConfig& config, int32_t prompt_tokens);

// Returns the highest number of bytes that are mapped for a request and not filled, summed over
// GPUs.
absl::StatusOr<int64_t> WorstWasteBytes(const WindowRunConfig& config);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_VATTENTION_RUNS_H_
