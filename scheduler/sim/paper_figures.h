// Reproduces the PagedAttention paper's tables and figures that need no GPU. Each call makes one
// table or figure.
//
// Thread safety: free functions, safe from any thread.
// Errors:        those of RunSimulation and FindSustainedRate.
// Source:        Kwon et al. 2023. Numbers that are not in the paper's text were read off its
//                figures and are marked "read off".
#ifndef QUIRE_SCHEDULER_SIM_PAPER_FIGURES_H_
#define QUIRE_SCHEDULER_SIM_PAPER_FIGURES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "scheduler/sim/figure.h"

namespace quire {

struct FigureOptions {
  uint64_t seed = 1;
  // Upper bound on a trace's length. No trace is longer than the paper's: an hour, and 15 minutes
  // for OPT-175B.
  double trace_minutes = 60;
};

// Returns "table1", "fig2", "fig12", ...
const std::vector<std::string>& FigureNames();

// Errors: those at the top of this file, and kInvalidArgument for an unknown name; the message
// lists the known names.
absl::StatusOr<Figure> MakeFigure(std::string_view name, const FigureOptions& options);

absl::StatusOr<Figure> MakeTable1(const FigureOptions& options);  // KV slots
absl::StatusOr<Figure> MakeFig2(const FigureOptions& options);    // use of KV memory
absl::StatusOr<Figure> MakeFig12(const FigureOptions& options);   // basic sampling
absl::StatusOr<Figure> MakeFig13(const FigureOptions& options);   // batched requests
// As Fig 12, but with several outputs per request.
absl::StatusOr<Figure> MakeFig14(const FigureOptions& options);
absl::StatusOr<Figure> MakeFig15(const FigureOptions& options);  // sharing in a group
absl::StatusOr<Figure> MakeFig16(const FigureOptions& options);  // shared prefix
absl::StatusOr<Figure> MakeFig17(const FigureOptions& options);  // chats
absl::StatusOr<Figure> MakeFig18(const FigureOptions& options);  // block size
absl::StatusOr<Figure> MakeFig19(const FigureOptions& options);  // swap and recompute
// The vAttention paper's figures (Prabhu et al. 2024): KV memory in windows of virtual memory.
absl::StatusOr<Figure> MakeVattention(const FigureOptions& options);
// Our own figure: swap, recompute, and the measured choice between these two, under overload.
absl::StatusOr<Figure> MakePreemption(const FigureOptions& options);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_PAPER_FIGURES_H_
