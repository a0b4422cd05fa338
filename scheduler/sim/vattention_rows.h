// Rows of the vAttention paper's figures, in two parts, and the labels that both parts use.
//
// Thread safety: free functions, safe from any thread.
// Errors:        those of ServeInWindows.
// Source:        Prabhu et al. 2024 (arXiv 2405.04437).
#ifndef QUIRE_SCHEDULER_SIM_VATTENTION_ROWS_H_
#define QUIRE_SCHEDULER_SIM_VATTENTION_ROWS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "scheduler/sim/figure.h"
#include "scheduler/sim/paper_figures.h"
#include "scheduler/sim/swap_cost.h"
#include "scheduler/sim/virtual_memory.h"

namespace quire {

// Models of the vAttention paper, with numbers from that paper.
struct VattentionModel {
  const char* name;
  const char* platform;
  double kv_kib_per_token;      // from section 4
  double saturates_at;          // Fig 6: batch size at which throughput saturates
  const char* tokens_per_page;  // Table 8: with pages of 64 KB, on one GPU and on two
};
inline constexpr VattentionModel kVattentionModels[] = {
    {"Yi-6B", "a100-yi-6b", 64, 200, "64, 128"},
    {"Llama-3-8B", "a100x2-llama3-8b", 128, 200, "32, 64"},
    {"Yi-34B", "a100x2-yi-34b", 240, 128, "32, 64"}};
inline constexpr char kVattentionLlama[] = "a100x2-llama3-8b";

inline constexpr int64_t kVattentionPages[] = {64 * kKiB, 128 * kKiB, 256 * kKiB, kCudaPageBytes};
inline constexpr BlockLayout kWindowLayouts[] = {BlockLayout::kLayerMajor,
                                                 BlockLayout::kBlockMajor};
inline constexpr int32_t kVattentionPrompt = 16'384;  // tokens of the prompt in Fig 11

std::string NameOfPage(int64_t page_bytes);
std::string LabelOf(BlockLayout layout);
FigureRow ShownText(std::string quantity, std::string ours);

// Adds rows on how much memory is mapped: sections 4 and 5.1, Fig 6, Tables 7 and 8.
absl::Status AddMappedMemoryRows(Figure* figure);

// Adds rows on how long mapping takes, and on Linux's limit on mappings. Includes Fig 10 and 11.
absl::Status AddMappingTimeRows(const FigureOptions& options, Figure* figure);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_VATTENTION_ROWS_H_
