#include "worker/runtime/kv_pool_sizing.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/step/step_plan_check.h"

namespace quire {
namespace {

// Upper bound on the places (block-sized or page-sized parts) of all windows together. KvWindows
// keeps a 4-byte block id for each place, so these ids take at most 256 MiB.
constexpr int64_t kMaxPlaces = 1 << 26;

// Several blocks share a page only if the page has at least this size. With smaller pages, such as
// a CPU's, each block is padded to whole pages. Only toy models have blocks smaller than such a
// page.
constexpr int64_t kMinSharedPageBytes = 64 << 10;

int32_t NumBlocks(int64_t bytes, int64_t block_bytes) {
  return static_cast<int32_t>(
      std::clamp<int64_t>(bytes / std::max<int64_t>(1, block_bytes), 0, kMaxBlocksLimit));
}

absl::Status CheckFits(std::string_view field, int32_t num_blocks, int32_t limit) {
  if (num_blocks <= limit) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kResourceExhausted,
               "MEMORY",
               absl::StrCat(ToAbsl(field),
                            ": must fit in the worker's memory (got ",
                            num_blocks,
                            ", limit ",
                            limit,
                            ")"));
}

}  // namespace

int32_t NumBlocksAtMaxModelLen(const StepLimits& limits) {
  return DivCeil(limits.max_model_len, limits.block_size_tokens);
}

KvPoolSizing::KvPoolSizing(const Model& model,
                           const KernelBackend& backend,
                           const KvCacheBudget& budget)
    : model_(model), backend_(backend), budget_(budget) {}

absl::StatusOr<KvCacheSpec> KvPoolSizing::SpecFor(int32_t block_size_tokens, DType dtype) const {
  bool is_power_of_two =
      block_size_tokens > 0 && (block_size_tokens & (block_size_tokens - 1)) == 0;
  if (!is_power_of_two || block_size_tokens > kMaxBlockSizeTokens) {
    return InvalidArgument("STEP_LIMITS",
                           absl::StrCat("block_size_tokens: must be a power of two (got ",
                                        block_size_tokens,
                                        ", limit ",
                                        kMaxBlockSizeTokens,
                                        ")"));
  }
  if (!backend_.CanStoreKvAs(dtype)) {
    return InvalidArgument(
        "STEP_LIMITS",
        absl::StrCat("kv_cache_dtype: this worker cannot store keys and values as ",
                     ToAbsl(NameOf(dtype))));
  }
  const ModelConfig& config = model_.config();
  const KvCacheSpec spec = {.num_layers = config.num_layers,
                            .num_kv_heads = model_.share().kv_heads.count,
                            .head_dim = config.head_dim,
                            .block_size_tokens = block_size_tokens,
                            .dtype = dtype};
  const KvCacheLayout layout = backend_.LayoutFor(spec);
  if (layout.row_order == KvRowOrder::kSwizzled && !HasSwizzledRows(layout)) {
    return InvalidArgument("STEP_LIMITS",
                           absl::StrCat("block_size_tokens: must be at least ",
                                        kMinSwizzledBlockTokens,
                                        " on a GPU (got ",
                                        block_size_tokens,
                                        ")"));
  }
  return spec;
}

DType KvPoolSizing::DefaultKvCacheDtype() const {
  const DType stored = model_.config().dtype;
  return backend_.CanStoreKvAs(stored) ? stored : backend_.activation_dtype();
}

int32_t KvPoolSizing::BlocksPerPage(const KvCacheSpec& spec) const {
  const int64_t page_bytes = backend_.window_page_bytes();
  if (!has_windows() || page_bytes < kMinSharedPageBytes) {
    return 1;
  }
  const auto block_bytes = static_cast<uint64_t>(backend_.LayoutFor(spec).block_bytes());
  const uint64_t num_blocks = std::bit_floor(static_cast<uint64_t>(page_bytes) / block_bytes);
  return static_cast<int32_t>(std::clamp<uint64_t>(num_blocks, 1, kMaxBlocksPerPage));
}

KvCacheLayout KvPoolSizing::LayoutFor(const KvCacheSpec& spec) const {
  const KvCacheLayout layout = backend_.LayoutFor(spec);
  return has_windows() ? PadBlocks(layout, backend_.window_page_bytes() / BlocksPerPage(spec))
                       : layout;
}

KvMemory KvPoolSizing::MemoryOf(const KvCacheSpec& spec) const {
  if (budget_.backend == KvBackend::kPaged) {
    return {.backend = KvBackend::kPaged};
  }
  return {.backend = budget_.backend,
          .page_bytes = backend_.window_page_bytes(),
          .padding_bytes = BlockBytes(spec) - backend_.LayoutFor(spec).block_bytes(),
          .max_places = backend_.max_window_places()};
}

int32_t KvPoolSizing::MaxBlocks(const KvCacheSpec& spec) const {
  if (budget_.num_blocks_override > 0) {
    return std::min(budget_.num_blocks_override, kMaxBlocksLimit);
  }
  const int32_t num_blocks = NumBlocks(budget_.bytes, BlockBytes(spec));
  return num_blocks - num_blocks % BlocksPerPage(spec);
}

int32_t KvPoolSizing::MaxHostBlocks(const KvCacheSpec& spec) const {
  return NumBlocks(budget_.swap_space_bytes, BlockBytes(spec));
}

absl::Status KvPoolSizing::CheckOverride(const KvCacheSpec& spec) const {
  const int64_t num_blocks = budget_.num_blocks_override;
  if (num_blocks <= budget_.max_bytes / BlockBytes(spec)) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kResourceExhausted,
               "MEMORY",
               absl::StrCat("--num-gpu-blocks-override: blocks of ",
                            BlockBytes(spec),
                            " bytes do not fit in memory (got ",
                            num_blocks,
                            ", limit ",
                            budget_.max_bytes / BlockBytes(spec),
                            ")"));
}

absl::Status KvPoolSizing::CheckBlocks(const StepLimits& limits, const KvCacheSpec& spec) const {
  QUIRE_RETURN_IF_ERROR(CheckFits("num_blocks", limits.num_blocks, MaxBlocks(spec)));
  return CheckFits("num_host_blocks", limits.num_host_blocks, MaxHostBlocks(spec));
}

absl::StatusOr<int64_t> KvPoolSizing::NumPlaces(const StepLimits& limits,
                                                const KvCacheSpec& spec) const {
  if (!has_windows()) {
    return 0;
  }
  const int32_t window_pages = DivCeil(NumBlocksAtMaxModelLen(limits), BlocksPerPage(spec));
  const int64_t num_places = int64_t{limits.max_sequences} * window_pages;
  if (num_places > kMaxPlaces) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "MEMORY",
                 absl::StrCat("max_sequences: windows of max_model_len tokens need too many places "
                              "(got ",
                              num_places,
                              ", limit ",
                              kMaxPlaces,
                              ")"));
  }
  return num_places;
}

int64_t KvPoolSizing::PoolBytes(const StepLimits& limits, DType kv_cache_dtype) const {
  const auto spec = SpecFor(limits.block_size_tokens, kv_cache_dtype);
  if (!spec.ok()) {
    return 0;
  }
  const int64_t num_blocks = std::clamp(limits.num_blocks, 0, MaxBlocks(*spec));
  const int64_t num_host = std::clamp(limits.num_host_blocks, 0, MaxHostBlocks(*spec));
  return (num_blocks + num_host) * BlockBytes(*spec);
}

}  // namespace quire
