// Simulates KV memory in windows of virtual memory. A window is a range of contiguous virtual
// addresses for one sequence. Pages of physical memory are mapped at these addresses as the
// sequence grows, and each mapping takes the driver some time. There are two layouts. The
// vAttention paper's layout has two windows for every layer, one for K and one for V. Quire's
// layout has a single window; each of its blocks holds K and V of all layers.
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

// CUDA's own driver maps only multiples of 2 MB. Smaller pages need the vAttention paper's driver.
inline constexpr int64_t kCudaPageBytes = 2 * kMiB;

// Linux's default bound on the mappings of a process, vm.max_map_count. Windows in main memory
// consist of such mappings.
inline constexpr int64_t kMaxMapCount = 65'530;

// The driver's time for one page. virtual_memory.cc gives the sources.
struct VmmCost {
  Instant map = 0;    // time until the page can be used
  Instant unmap = 0;  // time until the page can be mapped elsewhere
};
VmmCost CostOfPage(int64_t page_bytes);

// Sizes of the windows of one sequence. The windows grow by one group of pages at a time.
struct WindowShape {
  int64_t page_bytes = 0;
  int32_t tokens_per_group = 0;
  int32_t pages_per_group = 0;
  int32_t mappings_per_group = 0;  // number of address ranges in which a group is mapped
  int64_t bytes_per_token = 0;

  int64_t group_bytes() const { return pages_per_group * page_bytes; }
};

// Returns the groups of pages by which windows grow. In kLayerMajor a group has two pages for each
// layer, one of K and one of V, and each page is mapped alone. In kBlockMajor a group is the
// smallest number of whole blocks that fill whole pages, and is mapped at once. Only kBlockMajor
// depends on block_size_tokens.
// REQUIRES: a page holds at least one token of a layer; page_bytes is a power of two.
WindowShape ShapeOfWindows(const Platform& platform,
                           BlockLayout layout,
                           int64_t page_bytes,
                           int32_t block_size_tokens);

struct MapperOptions {
  // A background thread maps pages for the next step while the current step runs.
  bool maps_ahead = true;
  // Pages of an ended request stay mapped in the slot (PageMapper) for the slot's next request,
  // until another slot needs the memory.
  bool defers_reclamation = true;
};

// Totals of a mapper so far.
struct MapperCounts {
  int64_t num_pages_on_path = 0;  // mapped while a step waited
  int64_t num_pages_ahead = 0;    // mapped in the background while a step ran
  int64_t num_pages_unmapped = 0;
  int64_t num_pages_found = 0;  // taken over from the slot's previous request
  Instant waited = 0;           // total time that steps waited for mappings
};

// PageMapper holds num_slots slots, and physical memory in groups of pages. A slot consists of the
// windows for one sequence, and serves one request at a time.
//
// Invariants: every group is free or mapped in exactly one slot. While a request's step runs, the
//             request's slot has all groups that the request's tokens need.
class PageMapper {
 public:
  // REQUIRES: num_slots >= 1, num_groups >= 0.
  PageMapper(const WindowShape& shape,
             const VmmCost& cost,
             int32_t num_slots,
             int64_t num_groups,
             const MapperOptions& options);

  // Takes a slot for a request of num_tokens tokens, and returns the slot. Among the free slots
  // with enough mapped groups, takes the slot with the fewest groups. If no free slot has enough,
  // takes the free slot with the most groups. REQUIRES: a slot is free.
  int32_t Begin(int64_t num_tokens);

  // Ends the request in the slot. REQUIRES: the slot has a request.
  void End(int32_t slot);

  // Returns the time at which the step can begin: by then, the background thread has finished and
  // missing pages are mapped. Returns nullopt if physical memory does not suffice. tokens: for each
  // slot, the number of tokens of the slot's request after the step; ignored for slots without a
  // request.
  std::optional<Instant> BeginStep(Instant now, const std::vector<int64_t>& tokens);

  int64_t num_mapped_groups(int32_t slot) const { return groups_[static_cast<size_t>(slot)]; }
  int64_t num_free_groups() const { return num_free_groups_; }
  int64_t num_mappings() const;
  const MapperCounts& counts() const { return counts_; }

 private:
  int64_t GroupsFor(int64_t num_tokens) const;
  // Fills needed_ for requests whose lengths are `tokens` plus more_tokens.
  void FindNeeded(const std::vector<int64_t>& tokens, int64_t more_tokens);
  // Unmaps unneeded groups, of any slot, until num_groups are free. Returns false if too few groups
  // are unneeded. Adds the time of unmapping to *now.
  bool Reclaim(int64_t num_groups, Instant* now);
  void Unmap(size_t slot, int64_t num_groups, Instant* now);
  void Map(size_t slot, int64_t num_groups, Instant* now);
  void MapAhead(Instant begin);

  WindowShape shape_;
  VmmCost cost_;
  MapperOptions options_;
  int64_t num_free_groups_;
  std::vector<int64_t> groups_;  // for each slot: mapped groups
  std::vector<int64_t> needed_;  // for each slot: groups for this step; in MapAhead, for the next
  std::vector<bool> is_active_;  // for each slot: true if a request has the slot
  Instant unmapping_ = 0;        // time of unmapping that delays the next step
  Instant background_free_at_ = 0;
  MapperCounts counts_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_SIM_VIRTUAL_MEMORY_H_
