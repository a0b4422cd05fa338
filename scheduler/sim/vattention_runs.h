// Runs of requests in windows, from which the vAttention paper's figures are made.
//
// Thread safety: calls share nothing.
// Errors:        those of ServeInWindows.
#ifndef QUIRE_SCHEDULER_SIM_VATTENTION_RUNS_H_
#define QUIRE_SCHEDULER_SIM_VATTENTION_RUNS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "scheduler/sim/window_run.h"

namespace quire {

// REQUIRES: the platform is known.
WindowRunConfig WindowConfigFor(std::string_view platform, BlockLayout layout, int64_t page_bytes);

struct DecodePoint {
  int32_t batch = 0;
  double tokens_per_s = 0;
  double mapped_bytes_per_s = 0;  // on each GPU
};

// Decoding alone, in batches of up to 512 requests or as many as fit, each from 1,024 tokens to
// 1,536.
absl::StatusOr<std::vector<DecodePoint>> SweepDecode(const WindowRunConfig& config);

// The smallest batch with nine tenths of the highest throughput. REQUIRES: points is not empty.
int32_t SaturatingBatch(const std::vector<DecodePoint>& points);

// Waits of decode steps for mappings. All requests have the same length, 16,384 tokens at first,
// over 4,096 steps.
struct DecodeWaits {
  double usual_ms = 0;      // a step that does not wait: median
  double waiting_ms = 0;    // a step that waits: mean; 0: none does
  double longest_ms = 0;    // longest wait
  int64_t steps_apart = 0;  // from one that waits to the next; 0: fewer than two do
};
absl::StatusOr<DecodeWaits> MeasureDecodeWaits(const WindowRunConfig& config);

// Percent by which the prefill of a lone prompt is longer if its pages are mapped first.
absl::StatusOr<double> PrefillSlowdownPercent(const WindowRunConfig& config, int32_t prompt_tokens);

// Bytes that the driver maps a second, on each GPU, while a prompt waits.
absl::StatusOr<double> MappingRate(const WindowRunConfig& config, int32_t prompt_tokens);

// Highest number of bytes that are mapped for a request and not filled, summed over GPUs.
absl::StatusOr<int64_t> WorstWasteBytes(const WindowRunConfig& config);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_VATTENTION_RUNS_H_
