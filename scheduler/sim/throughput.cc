#include "scheduler/sim/throughput.h"

#include <algorithm>
#include <cmath>

#include "common/base/status_macros.h"

namespace quire {
namespace {

constexpr double kTolerance = 1.01;
constexpr double kStride = 2;
constexpr double kFarthest = 1000;  // greatest factor between the guess and a tried rate
constexpr int kMaxTrials = 40;      // kFarthest and kTolerance need only 17 trials

// Runs the trace. If the latency is within the limit, adds a point and returns true.
absl::StatusOr<bool> Holds(const SimConfig& config,
                           const Trace& trace,
                           double rate,
                           std::vector<RatePoint>* points) {
  SimConfig limited = config;
  limited.latency_limit_s = kLatencyLimitSeconds;
  absl::StatusOr<SimResult> result = RunSimulation(limited, trace);
  if (!result.ok()) {
    return result.status();
  }
  if (!result->is_over_limit) {
    points->push_back({rate, result->mean_normalized_latency_s});
  }
  return !result->is_over_limit;
}

}  // namespace

absl::StatusOr<SustainedRate> FindSustainedRate(const SimConfig& config,
                                                const std::function<Trace(double)>& trace_at_rate,
                                                double guess) {
  SustainedRate found;
  double low = 0;   // highest tried rate whose latency is within the limit; 0: none
  double high = 0;  // lowest tried rate whose latency is over the limit; 0: none
  double rate = guess;
  for (int trial = 0; low == 0 || high == 0 || high / low > kTolerance; ++trial) {
    if (trial == kMaxTrials || rate < guess / kFarthest || rate > guess * kFarthest) {
      return absl::OutOfRangeError(
          "found no highest rate within the latency limit near the guessed rate");
    }
    absl::StatusOr<bool> holds = Holds(config, trace_at_rate(rate), rate, &found.points);
    if (!holds.ok()) {
      return holds.status();
    }
    (*holds ? low : high) = rate;
    if (low == 0) {
      rate = high / kStride;
    } else if (high == 0) {
      rate = low * kStride;
    } else {
      rate = std::sqrt(low * high);
    }
  }
  std::sort(found.points.begin(), found.points.end(), [](const RatePoint& a, const RatePoint& b) {
    return a.requests_per_second < b.requests_per_second;
  });
  found.requests_per_second = low;
  return found;
}

}  // namespace quire
