// Draws a plot as SVG: lines with a mark at each point, axes with numbers, a legend. The y axis
// begins at 0.
//
// Thread safety: a pure function, safe from any thread.
#ifndef QUIRE_SCHEDULER_SIM_SVG_PLOT_H_
#define QUIRE_SCHEDULER_SIM_SVG_PLOT_H_

#include <string>

#include "scheduler/sim/figure.h"

namespace quire {

// REQUIRES: with has_log_x, every x is positive.
std::string DrawSvg(const Plot& plot);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_SVG_PLOT_H_
