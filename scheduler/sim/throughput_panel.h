// One panel of a figure that compares policies by the request rates that they sustain at an equal
// latency.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_SCHEDULER_SIM_THROUGHPUT_PANEL_H_
#define QUIRE_SCHEDULER_SIM_THROUGHPUT_PANEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "scheduler/sim/figure.h"
#include "scheduler/sim/simulation.h"
#include "scheduler/sim/trace.h"

namespace quire {

struct ThroughputPanel {
  std::string file_name;  // file name of the plot
  std::string title;
  std::string platform;
  std::function<Trace(double)> trace_at_rate;
  double guess = 1;  // guess of the sustained rate, in requests per second
  bool prefix_caching = false;
  // The next two fields are as in SimConfig.
  int32_t num_sequences = 1;
  int32_t num_beams = 1;
  // In the order of the plot's curves. The PagedAttention paper compares with Orca in every plot.
  std::vector<MemoryPolicy> policies = {MemoryPolicy::kOrcaMax,
                                        MemoryPolicy::kOrcaPow2,
                                        MemoryPolicy::kOrcaOracle,
                                        MemoryPolicy::kPaged};
};

using PolicyRates = std::map<MemoryPolicy, double>;  // requests per second

// Returns the sustained rate of each of the panel's policies and adds the panel's plot to figure.
// Errors: those of FindSustainedRate.
absl::StatusOr<PolicyRates> MakePanel(const ThroughputPanel& panel, Figure* figure);

// Returns the paged policy's rate divided by the rate of `other`.
double PagedOver(const PolicyRates& rates, MemoryPolicy other);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_THROUGHPUT_PANEL_H_
