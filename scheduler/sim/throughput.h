// The highest request rate that a configuration serves at a given latency: how the paper compares
// systems.
//
// Thread safety: calls share nothing.
#ifndef QUIRE_SCHEDULER_SIM_THROUGHPUT_H_
#define QUIRE_SCHEDULER_SIM_THROUGHPUT_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"

#include "scheduler/sim/simulation.h"
#include "scheduler/sim/trace.h"

namespace quire {

// Read at the middle of the paper's latency axis, which ends at 1 s a token.
inline constexpr double kLatencyLimitSeconds = 0.5;  // mean normalised latency

struct RatePoint {
  double requests_per_second = 0;
  double latency_s = 0;  // mean normalised
};

struct SustainedRate {
  double requests_per_second = 0;
  std::vector<RatePoint> points;  // those tried that were within the limit, by rate
};

// Halves the interval until it is within 1 %. guess is an order of magnitude. The requests are the
// same at all rates but for their number. Errors: those of RunSimulation, and kOutOfRange when even
// a thousandth of the guess is too much.
absl::StatusOr<SustainedRate> FindSustainedRate(const SimConfig& config,
                                                const std::function<Trace(double)>& trace_at_rate,
                                                double guess);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_THROUGHPUT_H_
