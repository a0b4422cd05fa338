#include "scheduler/sim/virtual_memory.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"
#include "common/base/math.h"

namespace quire {
namespace {

// In the vAttention paper, a call of the paper's driver that maps a page of 64 to 256 KB takes
// about 9 us. The paper gives no time for unmapping, so the simulator assumes the same time.
constexpr Instant kSmallPageMap = 9 * kNanosPerMicro;
constexpr Instant kSmallPageUnmap = 9 * kNanosPerMicro;

// Times of CUDA's calls for a page of 2 MB on an A100: cuMemMap 1.45 us plus cuMemSetAccess 35.99
// us, and cuMemUnmap 25.63 us. Source: ovg-project/kvcached, benchmarks/bench_vmm. Physical pages
// are made beforehand, so making them takes no time here.
constexpr Instant kCudaPageMap = 37'440;
constexpr Instant kCudaPageUnmap = 25'630;

constexpr int64_t kElementBytes = 2;

}  // namespace

VmmCost CostOfPage(int64_t page_bytes) {
  return page_bytes < kCudaPageBytes ? VmmCost{.map = kSmallPageMap, .unmap = kSmallPageUnmap}
                                     : VmmCost{.map = kCudaPageMap, .unmap = kCudaPageUnmap};
}

WindowShape ShapeOfWindows(const Platform& platform,
                           BlockLayout layout,
                           int64_t page_bytes,
                           int32_t block_size_tokens) {
  const ModelSpec& model = platform.model;
  const int64_t bytes_per_token = model.kv_bytes_per_token() / platform.num_gpus;
  WindowShape shape{.page_bytes = page_bytes, .bytes_per_token = bytes_per_token};
  if (layout == BlockLayout::kLayerMajor) {
    const int64_t bytes_per_row = model.kv_size * kElementBytes / platform.num_gpus;
    QUIRE_CHECK(page_bytes >= bytes_per_row);
    shape.tokens_per_group = static_cast<int32_t>(page_bytes / bytes_per_row);
    shape.pages_per_group = 2 * model.num_layers;
    shape.mappings_per_group = shape.pages_per_group;
    return shape;
  }
  const int64_t block_bytes = bytes_per_token * block_size_tokens;
  const int64_t group_bytes = std::lcm(block_bytes, page_bytes);
  shape.tokens_per_group = static_cast<int32_t>(group_bytes / bytes_per_token);
  shape.pages_per_group = static_cast<int32_t>(group_bytes / page_bytes);
  shape.mappings_per_group = 1;
  return shape;
}

PageMapper::PageMapper(const WindowShape& shape,
                       const VmmCost& cost,
                       int32_t num_slots,
                       int64_t num_groups,
                       const MapperOptions& options)
    : shape_(shape),
      cost_(cost),
      options_(options),
      num_free_groups_(num_groups),
      groups_(static_cast<size_t>(num_slots)),
      needed_(static_cast<size_t>(num_slots)),
      is_active_(static_cast<size_t>(num_slots)) {
  QUIRE_CHECK(num_slots >= 1 && num_groups >= 0);
}

int64_t PageMapper::GroupsFor(int64_t num_tokens) const {
  return DivCeil(num_tokens, int64_t{shape_.tokens_per_group});
}

void PageMapper::FindNeeded(const std::vector<int64_t>& tokens, int64_t more_tokens) {
  for (size_t slot = 0; slot < groups_.size(); ++slot) {
    needed_[slot] = is_active_[slot] ? GroupsFor(tokens[slot] + more_tokens) : 0;
  }
}

int32_t PageMapper::Begin(int64_t num_tokens) {
  const int64_t wanted = GroupsFor(num_tokens);
  // A slot with enough groups is better than a slot with too few. If both or neither have enough,
  // the slot with the count nearer to `wanted` is better.
  const auto is_better = [&](int64_t a, int64_t b) {
    const bool a_is_enough = a >= wanted;
    return a_is_enough == (b >= wanted) ? (a_is_enough ? a < b : a > b) : a_is_enough;
  };
  std::optional<size_t> best;
  for (size_t slot = 0; slot < groups_.size(); ++slot) {
    if (!is_active_[slot] && (!best.has_value() || is_better(groups_[slot], groups_[*best]))) {
      best = slot;
    }
  }
  QUIRE_CHECK(best.has_value());
  is_active_[*best] = true;
  counts_.num_pages_found += std::min(groups_[*best], wanted) * shape_.pages_per_group;
  return static_cast<int32_t>(*best);
}

void PageMapper::End(int32_t slot) {
  const auto index = static_cast<size_t>(slot);
  QUIRE_CHECK(is_active_[index]);
  is_active_[index] = false;
  if (!options_.defers_reclamation) {
    Unmap(index, groups_[index], &unmapping_);
  }
}

void PageMapper::Unmap(size_t slot, int64_t num_groups, Instant* now) {
  const int64_t num_pages = num_groups * shape_.pages_per_group;
  groups_[slot] -= num_groups;
  num_free_groups_ += num_groups;
  counts_.num_pages_unmapped += num_pages;
  *now += num_pages * cost_.unmap;
}

void PageMapper::Map(size_t slot, int64_t num_groups, Instant* now) {
  groups_[slot] += num_groups;
  num_free_groups_ -= num_groups;
  *now += num_groups * shape_.pages_per_group * cost_.map;
}

bool PageMapper::Reclaim(int64_t num_groups, Instant* now) {
  for (size_t slot = groups_.size(); slot-- > 0 && num_free_groups_ < num_groups;) {
    if (groups_[slot] > needed_[slot]) {
      const int64_t most = groups_[slot] - needed_[slot];
      Unmap(slot, std::min(most, num_groups - num_free_groups_), now);
    }
  }
  return num_free_groups_ >= num_groups;
}

std::optional<Instant> PageMapper::BeginStep(Instant now, const std::vector<int64_t>& tokens) {
  QUIRE_CHECK(tokens.size() == groups_.size());
  Instant begin = std::max(now, background_free_at_) + unmapping_;
  unmapping_ = 0;
  FindNeeded(tokens, 0);
  for (size_t slot = 0; slot < groups_.size(); ++slot) {
    const int64_t missing = needed_[slot] - groups_[slot];
    if (missing <= 0) {
      continue;
    }
    if (!Reclaim(missing, &begin)) {
      return std::nullopt;
    }
    Map(slot, missing, &begin);
    counts_.num_pages_on_path += missing * shape_.pages_per_group;
  }
  counts_.waited += begin - now;
  if (options_.maps_ahead) {
    FindNeeded(tokens, 1);
    MapAhead(begin);
  }
  return begin;
}

void PageMapper::MapAhead(Instant begin) {
  background_free_at_ = begin;
  for (size_t slot = 0; slot < groups_.size(); ++slot) {
    // If too little memory is free, the pages are mapped later, while the step that needs them
    // waits.
    const int64_t missing = needed_[slot] - groups_[slot];
    if (missing > 0 && Reclaim(missing, &background_free_at_)) {
      Map(slot, missing, &background_free_at_);
      counts_.num_pages_ahead += missing * shape_.pages_per_group;
    }
  }
}

int64_t PageMapper::num_mappings() const {
  return std::accumulate(groups_.begin(), groups_.end(), int64_t{0}) * shape_.mappings_per_group;
}

}  // namespace quire
