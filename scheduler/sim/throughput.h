// Finds the highest request rate that a configuration serves at a given latency. The PagedAttention
// paper compares systems by this rate.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_SCHEDULER_SIM_THROUGHPUT_H_
#define QUIRE_SCHEDULER_SIM_THROUGHPUT_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"

#include "scheduler/sim/simulation.h"
#include "scheduler/sim/trace.h"

namespace quire {

// Mean normalized latency at which rates are compared: the middle of the latency axis, which ends
// at 1 s in the plots of the PagedAttention paper.
inline constexpr double kLatencyLimitSeconds = 0.5;

struct RatePoint {
  double requests_per_second = 0;
  double latency_s = 0;  // mean normalized latency
};

struct SustainedRate {
  double requests_per_second = 0;
  std::vector<RatePoint> points;  // tried rates whose latency is within the limit, ascending
};

// Finds the rate by bisection, to within 1 %. `guess` need only have the right order of magnitude.
// REQUIRES: the traces of trace_at_rate differ only in the number and spacing of their requests.
// Errors: those of RunSimulation, and kOutOfRange if the rate is not within a factor of 1,000 of
// `guess`.
absl::StatusOr<SustainedRate> FindSustainedRate(const SimConfig& config,
                                                const std::function<Trace(double)>& trace_at_rate,
                                                double guess);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_THROUGHPUT_H_
