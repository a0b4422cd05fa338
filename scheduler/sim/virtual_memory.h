// KV memory in windows of virtual memory, in virtual time. A sequence's K and V have contiguous
// addresses. Pages of physical memory are mapped there as the sequence grows, and each mapping
// takes the driver's time. Two layouts: the vAttention paper's, with a window for K and one for V
// of every layer, and Quire's, with one window of blocks that hold all layers.
//
// Thread safety: WindowShape and VmmCost are value types; PageMapper is not thread-safe.
// Units:         bytes and pages are those of one GPU, because each GPU maps the same at the same
//                time.
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

// Linux's default bound on the mappings of a process, vm.max_map_count. Windows in main memory are
// such mappings.
inline constexpr int64_t kMaxMapCount = 65'530;

// The driver's time for one page. README.md gives the sources.
struct VmmCost {
  Instant map = 0;    // until the page may be used
  Instant unmap = 0;  // until the page can be mapped elsewhere
};
VmmCost CostOfPage(int64_t page_bytes);

// The windows of one sequence, which grow by one group of pages at a time.
struct WindowShape {
  int64_t page_bytes = 0;
  int32_t tokens_per_group = 0;
  int32_t pages_per_group = 0;
  int32_t mappings_per_group = 0;  // address ranges that the group is mapped in
  int64_t bytes_per_token = 0;

  int64_t group_bytes() const { return pages_per_group * page_bytes; }
};

// In kLayerMajor a group is one page for K and one for V of each layer. In kBlockMajor a group is
// the smallest number of whole blocks that fill whole pages, in one mapping; only this layout
// depends on block_size_tokens.
// REQUIRES: a page holds at least one token of a layer; page_bytes is a power of two.
WindowShape ShapeOfWindows(const Platform& platform,
                           BlockLayout layout,
                           int64_t page_bytes,
                           int32_t block_size_tokens);

struct MapperOptions {
  // A background thread maps pages for the next step while the current step runs.
  bool maps_ahead = true;
  // Pages of an ended request stay mapped, for the next request in its slot, until they are needed
  // elsewhere.
  bool defers_reclamation = true;
};

// Totals of a mapper so far.
struct MapperCounts {
  int64_t num_pages_on_path = 0;  // mapped while a step waited
  int64_t num_pages_ahead = 0;    // mapped beside a step
  int64_t num_pages_unmapped = 0;
  int64_t num_pages_found = 0;  // taken over from the slot's previous request
  Instant waited = 0;           // total time that steps waited for mappings
};

// PageMapper holds the windows of num_slots slots, and the physical memory behind them in groups of
// pages. A slot serves one request at a time.
//
// Invariants: every group is free or mapped in exactly one slot. While a request's step runs, its
//             slot has all groups that its tokens need.
class PageMapper {
 public:
  // REQUIRES: num_slots >= 1, num_groups >= 0.
  PageMapper(const WindowShape& shape,
             const VmmCost& cost,
             int32_t num_slots,
             int64_t num_groups,
             const MapperOptions& options);

  // Takes a slot for a request of num_tokens, and returns it. Prefers, among free slots with enough
  // mapped groups, the one with the fewest; if no slot has enough, the one with the most. REQUIRES:
  // a slot is free.
  int32_t Begin(int64_t num_tokens);

  // Ends the request in the slot. REQUIRES: the slot has a request.
  void End(int32_t slot);

  // tokens: by slot, the number of tokens that its request has after the step; ignored for slots
  // without a request. Returns the time at which the step can begin, with the background thread
  // finished and missing pages mapped; nullopt if physical memory does not suffice.
  std::optional<Instant> BeginStep(Instant now, const std::vector<int64_t>& tokens);

  int64_t num_mapped_groups(int32_t slot) const { return groups_[static_cast<size_t>(slot)]; }
  int64_t num_free_groups() const { return num_free_groups_; }
  int64_t num_mappings() const;
  const MapperCounts& counts() const { return counts_; }

 private:
  int64_t GroupsFor(int64_t num_tokens) const;
  // Fills needed_ for requests whose lengths are `tokens` plus more_tokens.
  void FindNeeded(const std::vector<int64_t>& tokens, int64_t more_tokens);
  // Unmaps unneeded groups, of any slot, until num_groups are free. Returns false if too few are
  // unneeded. Adds the time that this takes to *now.
  bool Reclaim(int64_t num_groups, Instant* now);
  void Unmap(size_t slot, int64_t num_groups, Instant* now);
  void Map(size_t slot, int64_t num_groups, Instant* now);
  void MapAhead(Instant begin);

  WindowShape shape_;
  VmmCost cost_;
  MapperOptions options_;
  int64_t num_free_groups_;
  std::vector<int64_t> groups_;  // mapped groups, by slot
  std::vector<int64_t> needed_;  // groups, by slot, for this step; in MapAhead for the next step
  std::vector<bool> is_active_;  // by slot: true if a request has the slot
  Instant unmapping_ = 0;        // time of unmapping that the next step waits for
  Instant background_free_at_ = 0;
  MapperCounts counts_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_VIRTUAL_MEMORY_H_
