// Datasets, configurations and labels that the figures share.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_SCHEDULER_SIM_FIGURE_RUNS_H_
#define QUIRE_SCHEDULER_SIM_FIGURE_RUNS_H_

#include <string>
#include <string_view>

#include "scheduler/sim/length_model.h"
#include "scheduler/sim/paper_figures.h"
#include "scheduler/sim/simulation.h"
#include "scheduler/sim/trace.h"

namespace quire {

struct Dataset {
  std::string name;
  LengthShape lengths;
};

Dataset ShareGptDataset();
Dataset AlpacaDataset();

// REQUIRES: FindPlatform knows `platform`.
SimConfig ConfigFor(std::string_view platform, MemoryPolicy policy);

// Returns the options of a trace that lasts as long as the paper's trace, but at most
// options.trace_minutes.
TraceOptions TraceFor(const LengthShape& lengths,
                      double requests_per_second,
                      std::string_view platform,
                      const FigureOptions& options);

// Returns the name of a policy in plots and rows.
std::string LabelOf(MemoryPolicy policy);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_FIGURE_RUNS_H_
