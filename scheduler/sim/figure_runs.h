// What the figures have in common: their platforms, datasets and runs.
//
// Thread safety: calls share nothing.
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

// REQUIRES: the platform is known.
SimConfig ConfigFor(std::string_view platform, MemoryPolicy policy);

// The lengths at a rate, for as long as the options and the paper let it run.
TraceOptions TraceFor(const LengthShape& lengths,
                      double requests_per_second,
                      std::string_view platform,
                      const FigureOptions& options);

// The name of a policy in plots and rows.
std::string LabelOf(MemoryPolicy policy);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_FIGURE_RUNS_H_
