// KV memory in windows of virtual memory, in virtual time: a sequence sees its K and V at addresses
// that follow each other, pages of physical memory are mapped there as it grows, and the driver
// takes its time for each. Two layouts: the vAttention paper's, which has a window for K and one
// for V of every layer, and Quire's, which has one window of blocks that hold all layers.
//
// Thread safety: WindowShape and VmmCost are value types; PageMapper is not thread-safe.
// Units:         bytes and pages are those of one GPU: each maps the same at the same time.
// Source:        Prabhu et al. 2024 (arXiv 2405.04437), sections 5 and 6.
#ifndef QUIRE_SCHEDULER_SIM_VIRTUAL_MEMORY_H_
#define QUIRE_SCHEDULER_SIM_VIRTUAL_MEMORY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "scheduler/sim/cost_model.h"
#include "scheduler/sim/swap_cost.h"

namespace quire {

inline constexpr int64_t kKiB = 1024;
inline constexpr int64_t kMiB = 1024 * kKiB;

// CUDA's own driver maps 2 MB or multiples of it; the smaller pages need the paper's driver.
inline constexpr int64_t kCudaPageBytes = 2 * kMiB;

// Mappings that Linux lets a process have unless told otherwise, vm.max_map_count. Windows in main
// memory are such mappings.
inline constexpr int64_t kMaxMapCount = 65'530;

// What the driver takes for one page. README.md says where the numbers are from.
struct VmmCost {
  Instant map = 0;    // it is in its place and may be used
  Instant unmap = 0;  // and can be mapped elsewhere
};
VmmCost CostOfPage(int64_t page_bytes);

// How the windows of one sequence grow: by a group of pages at a time.
struct WindowShape {
  int64_t page_bytes = 0;
  int32_t tokens_per_group = 0;
  int32_t pages_per_group = 0;
  int32_t mappings_per_group = 0;  // ranges of addresses that the group is in
  int64_t bytes_per_token = 0;

  int64_t group_bytes() const { return pages_per_group * page_bytes; }
};

// kLayerMajor: a page for K and one for V of each layer. kBlockMajor: as few whole blocks as are
// whole pages, in one mapping; block_size_tokens is used there only. REQUIRES: a page holds at
// least one token of a layer; page_bytes is a power of two.
WindowShape ShapeOfWindows(const Platform& platform,
                           BlockLayout layout,
                           int64_t page_bytes,
                           int32_t block_size_tokens);

struct MapperOptions {
  // A background thread maps what the next step needs while this one runs.
  bool maps_ahead = true;
  // Pages of a request that has ended stay where they are, for the next one that takes its slot,
  // until they are needed elsewhere.
  bool defers_reclamation = true;
};

// What a mapper has done so far.
struct MapperCounts {
  int64_t num_pages_on_path = 0;  // mapped while a step waited
  int64_t num_pages_ahead = 0;    // mapped beside a step
  int64_t num_pages_unmapped = 0;
  int64_t num_pages_found = 0;  // that a request took over from the one before it in its slot
  Instant waited = 0;           // by steps
};

// PageMapper holds the windows of a number of slots, each for one request at a time, and the
// physical memory behind them.
//
// Invariants: every group is free or mapped in one slot; a slot has the groups that its tokens
//             need while its step runs.
class PageMapper {
 public:
  // REQUIRES: num_slots >= 1, num_groups >= 0.
  PageMapper(const WindowShape& shape,
             const VmmCost& cost,
             int32_t num_slots,
             int64_t num_groups,
             const MapperOptions& options);

  // A slot for a request of so many tokens: of those that no request has, the one whose mapped
  // groups fit best: the fewest that are enough, or else the most. REQUIRES: there is one.
  int32_t Begin(int64_t num_tokens);

  // The request in the slot has ended. REQUIRES: there is one.
  void End(int32_t slot);

  // tokens: by slot, those of each request once the step has run; of slots without one it is not
  // looked at. Returns when the step can begin: the background thread has finished, and what was
  // still missing is mapped. Nothing, when physical memory does not suffice.
  std::optional<Instant> BeginStep(Instant now, const std::vector<int64_t>& tokens);

  int64_t num_mapped_groups(int32_t slot) const { return groups_[static_cast<size_t>(slot)]; }
  int64_t num_free_groups() const { return num_free_groups_; }
  int64_t num_mappings() const;
  const MapperCounts& counts() const { return counts_; }

 private:
  int64_t GroupsFor(int64_t num_tokens) const;
  // Fills needed_, for requests that have so many tokens more.
  void FindNeeded(const std::vector<int64_t>& tokens, int64_t more_tokens);
  // Takes groups that are not needed, from whatever slot, until so many are free; false: there are
  // too few. Adds what that takes to *now.
  bool Reclaim(int64_t num_groups, Instant* now);
  void Unmap(size_t slot, int64_t num_groups, Instant* now);
  void Map(size_t slot, int64_t num_groups, Instant* now);
  void MapAhead(Instant begin);

  WindowShape shape_;
  VmmCost cost_;
  MapperOptions options_;
  int64_t num_free_groups_;
  std::vector<int64_t> groups_;  // mapped, by slot
  std::vector<int64_t> needed_;  // of them, by this step, or by the next while mapping for that
  std::vector<bool> is_active_;  // a request has the slot
  Instant unmapping_ = 0;        // that the next step waits for
  Instant background_free_at_ = 0;
  MapperCounts counts_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_VIRTUAL_MEMORY_H_
