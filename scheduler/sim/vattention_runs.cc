#include "scheduler/sim/vattention_runs.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace quire {
namespace {

constexpr int32_t kSweepPrompt = 1024;
constexpr int32_t kSweepSteps = 512;
constexpr int32_t kSweepBatches[] = {1,   2,   4,   8,   16,  32,  64,  96,  128, 160, 192,
                                     224, 256, 288, 320, 352, 384, 416, 448, 480, 512};

constexpr int32_t kWaitsPrompt = 16'384;
constexpr int32_t kWaitsSteps = 4096;

double SecondsOf(Instant time) {
  return static_cast<double>(time) / static_cast<double>(kNanosPerSecond);
}

double MillisOf(Instant time) { return static_cast<double>(time) / kNanosPerMilli; }

// Returns num_requests equal requests. Each has decode_steps + 1 output tokens, because prefill
// makes the first output token.
std::vector<SimRequest> Alike(int32_t num_requests, int32_t prompt_tokens, int32_t decode_steps) {
  return std::vector<SimRequest>(
      static_cast<size_t>(num_requests),
      {.prompt_tokens = prompt_tokens, .output_tokens = decode_steps + 1});
}

}  // namespace

WindowRunConfig WindowConfigFor(std::string_view platform, BlockLayout layout, int64_t page_bytes) {
  absl::StatusOr<Platform> found = FindPlatform(platform);
  QUIRE_CHECK(found.ok());
  return {.platform = *found, .layout = layout, .page_bytes = page_bytes};
}

absl::StatusOr<std::vector<DecodePoint>> SweepDecode(const WindowRunConfig& config) {
  std::vector<DecodePoint> points;
  for (int32_t batch : kSweepBatches) {
    WindowRunConfig at_batch = config;
    at_batch.batch = batch;
    absl::StatusOr<WindowRunResult> result =
        ServeInWindows(at_batch, Alike(batch, kSweepPrompt, kSweepSteps));
    if (absl::IsResourceExhausted(result.status())) {
      break;
    }
    QUIRE_RETURN_IF_ERROR(result.status());
    const WindowSteps& decode = result->decode;
    const auto mapped_bytes = static_cast<double>(decode.num_pages_mapped * config.page_bytes);
    points.push_back(
        {.batch = batch,
         .tokens_per_s = static_cast<double>(decode.num_tokens) / SecondsOf(decode.total),
         .mapped_bytes_per_s = mapped_bytes / SecondsOf(decode.total)});
  }
  return points;
}

int32_t SaturatingBatch(const std::vector<DecodePoint>& points) {
  QUIRE_CHECK(!points.empty());
  double most = 0;
  for (const DecodePoint& point : points) {
    most = std::max(most, point.tokens_per_s);
  }
  const auto first = std::find_if(points.begin(), points.end(), [&](const DecodePoint& point) {
    return point.tokens_per_s >= 0.9 * most;
  });
  return first->batch;
}

absl::StatusOr<DecodeWaits> MeasureDecodeWaits(const WindowRunConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(const WindowRunResult result,
                         ServeInWindows(config, Alike(config.batch, kWaitsPrompt, kWaitsSteps)));
  DecodeWaits waits;
  std::vector<Instant> usual;
  std::vector<size_t> waiting;
  for (size_t i = 0; i < result.decode.durations.size(); ++i) {
    const Instant duration = result.decode.durations[i];
    if (result.decode.waits[i] == 0) {
      usual.push_back(duration);
      continue;
    }
    waiting.push_back(i);
    waits.waiting_ms += MillisOf(duration);
    waits.longest_ms = std::max(waits.longest_ms, MillisOf(result.decode.waits[i]));
  }
  if (!usual.empty()) {
    std::nth_element(
        usual.begin(), usual.begin() + static_cast<int64_t>(usual.size() / 2), usual.end());
    waits.usual_ms = MillisOf(usual[usual.size() / 2]);
  }
  if (!waiting.empty()) {
    waits.waiting_ms /= static_cast<double>(waiting.size());
  }
  if (waiting.size() >= 2) {
    waits.steps_apart = static_cast<int64_t>(waiting[1] - waiting[0]);
  }
  return waits;
}

absl::StatusOr<double> PrefillSlowdownPercent(const WindowRunConfig& config,
                                              int32_t prompt_tokens) {
  WindowRunConfig on_path = config;
  on_path.mapper.maps_ahead = false;
  WindowRunConfig free = on_path;
  free.maps_at_no_cost = true;
  const std::vector<SimRequest> alone = Alike(1, prompt_tokens, 0);
  QUIRE_ASSIGN_OR_RETURN(const WindowRunResult waits, ServeInWindows(on_path, alone));
  QUIRE_ASSIGN_OR_RETURN(const WindowRunResult does_not, ServeInWindows(free, alone));
  return 100 * (SecondsOf(waits.prefill.total) / SecondsOf(does_not.prefill.total) - 1);
}

absl::StatusOr<double> MappingRate(const WindowRunConfig& config, int32_t prompt_tokens) {
  WindowRunConfig on_path = config;
  on_path.mapper.maps_ahead = false;
  QUIRE_ASSIGN_OR_RETURN(const WindowRunResult result,
                         ServeInWindows(on_path, Alike(1, prompt_tokens, 0)));
  return static_cast<double>(result.prefill.num_pages_mapped * config.page_bytes) /
         SecondsOf(result.prefill.waited);
}

absl::StatusOr<int64_t> WorstWasteBytes(const WindowRunConfig& config) {
  const WindowShape shape =
      ShapeOfWindows(config.platform, config.layout, config.page_bytes, config.block_size_tokens);
  // Waste is worst when the next group of pages is mapped ahead, but still empty. So the prompt
  // fills exactly one group of pages, and decode steps follow.
  QUIRE_ASSIGN_OR_RETURN(const WindowRunResult result,
                         ServeInWindows(config, Alike(1, shape.tokens_per_group, 16)));
  return result.most_wasted_bytes;
}

}  // namespace quire
