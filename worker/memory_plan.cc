#include "worker/memory_plan.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

// Bounds of the largest usual step. The memory of such steps is allocated before the KV pool is
// sized. An epoch with larger steps allocates their memory before its pool, and does not begin if
// memory is short.
constexpr StepBounds kUsualSteps = {
    .max_tokens = 8192, .max_seqs = 512, .max_context_tokens = 128 * 1024};
constexpr int32_t kUsualBlockTokens = 16;
// Upper bound on the slack: memory left free for uses that are neither reserved nor counted, such
// as code of kernels and buffers of collectives.
constexpr int64_t kMaxSlackBytes = int64_t{512} << 20;
constexpr int64_t kSlackParts = 40;  // the slack is at most 1 / kSlackParts of the device's memory
constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

absl::Status NoMemory(std::string_view rule, int64_t got_bytes, int64_t limit_bytes) {
  return Error(absl::StatusCode::kResourceExhausted,
               "MEMORY",
               absl::StrCat(ToAbsl(rule), " (got ", got_bytes, " bytes, limit ", limit_bytes, ")"));
}

StepBounds UsualSteps(const ModelConfig& model) {
  StepBounds bounds = kUsualSteps;
  bounds.max_context_tokens = std::min(bounds.max_context_tokens, model.max_position_embeddings);
  bounds.max_blocks_per_seq = DivCeil(bounds.max_context_tokens, kUsualBlockTokens);
  return bounds;
}

int64_t Sum(int64_t a, int64_t b) { return CheckedAdd(a, b).value_or(kUnknown); }

// Returns the bytes of the smallest block that a scheduler may ask for.
int64_t MinBlockBytes(const KernelBackend& backend,
                      const ModelConfig& config,
                      const RankShare& share) {
  return backend
      .LayoutFor({.num_layers = config.num_layers,
                  .num_kv_heads = share.kv_heads.count,
                  .head_dim = config.head_dim,
                  .block_size_tokens = 1,
                  .dtype = DType::kF8E4M3})
      .block_bytes();
}

// Checks that two blocks fit: a scheduler needs the null block and one more to serve a request.
absl::Status CheckHoldsBlocks(const KvCacheBudget& budget, int64_t min_block_bytes) {
  if (budget.num_blocks_override == 0 && budget.bytes < 2 * min_block_bytes) {
    return NoMemory(
        "KV cache: two blocks of one token do not fit", 2 * min_block_bytes, budget.bytes);
  }
  return absl::OkStatus();
}

// Checks that num_blocks_override blocks of the smallest size fit in max_bytes. The scheduler
// chooses the actual block size later.
absl::Status CheckOverride(const KvCacheBudget& budget, int64_t min_block_bytes) {
  if (budget.num_blocks_override <= budget.max_bytes / min_block_bytes) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kResourceExhausted,
               "MEMORY",
               absl::StrCat("--num-gpu-blocks-override: blocks of ",
                            min_block_bytes,
                            " bytes or more do not fit in memory (got ",
                            budget.num_blocks_override,
                            ", limit ",
                            budget.max_bytes / min_block_bytes,
                            ")"));
}

}  // namespace

absl::Status CheckMemory(const WorkerConfig& config,
                         const std::optional<DeviceSpace>& device,
                         std::optional<int64_t> total_bytes) {
  const int64_t ranks = config.ranks_on_host;
  const std::string of_ranks = ranks == 1 ? "" : absl::StrCat(", summed over ", ranks, " ranks");
  const auto for_all = [ranks](int64_t bytes) {
    return CheckedMultiply(bytes, ranks).value_or(kUnknown);
  };
  int64_t left_bytes = total_bytes.value_or(kUnknown);
  if (config.kv_cache_bytes_given && device.has_value()) {
    if (config.kv_cache.bytes > device->free_bytes) {
      return NoMemory("--kv-cache-memory-bytes: exceeds the free memory of the GPU",
                      config.kv_cache.bytes,
                      device->free_bytes);
    }
  } else if (config.kv_cache_bytes_given) {
    const int64_t bytes = for_all(config.kv_cache.bytes);
    if (bytes > left_bytes) {
      return NoMemory(
          absl::StrCat("--kv-cache-memory-bytes: exceeds the memory of this machine or container",
                       of_ranks),
          bytes,
          left_bytes);
    }
    left_bytes -= bytes;
  }
  const int64_t swap_bytes = for_all(config.kv_cache.swap_space_bytes);
  if (config.swap_space_given && swap_bytes > left_bytes) {
    return NoMemory(
        absl::StrCat("--swap-space: exceeds the memory left beside the KV cache", of_ranks),
        swap_bytes,
        left_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<KvCacheBudget> PlanMemory(const WorkerConfig& config,
                                         const HostMemory& host,
                                         const KernelBackend& backend,
                                         const ModelConfig& model,
                                         const RankShare& share,
                                         int64_t weight_bytes) {
  KvCacheBudget budget = config.kv_cache;
  const int64_t min_block_bytes = MinBlockBytes(backend, model, share);
  if (backend.space().has_value()) {
    if (config.kv_cache_bytes_given) {
      QUIRE_RETURN_IF_ERROR(CheckHoldsBlocks(budget, min_block_bytes));
    }
    return budget;
  }
  const int64_t room_bytes = std::min(host.total_bytes.value_or(kUnknown) / config.ranks_on_host,
                                      host.available_bytes.value_or(kUnknown));
  const int64_t beside_weights = std::max<int64_t>(0, room_bytes - weight_bytes);
  if (!config.kv_cache_bytes_given) {
    budget.bytes = std::min(budget.bytes, beside_weights / 10 * 3);
  }
  if (!config.swap_space_given) {
    budget.swap_space_bytes = std::min(budget.swap_space_bytes, beside_weights / 4);
  }
  const int64_t cache_bytes = budget.num_blocks_override > 0 ? 0 : budget.bytes;
  const int64_t needed_bytes = Sum(Sum(weight_bytes, cache_bytes), budget.swap_space_bytes);
  if (needed_bytes > room_bytes) {
    return NoMemory("weights, KV cache and swap space: exceed the memory of this worker",
                    needed_bytes,
                    room_bytes);
  }
  budget.max_bytes = beside_weights - budget.swap_space_bytes;
  QUIRE_RETURN_IF_ERROR(CheckOverride(budget, min_block_bytes));
  QUIRE_RETURN_IF_ERROR(CheckHoldsBlocks(budget, min_block_bytes));
  return budget;
}

absl::StatusOr<KvCacheBudget> SizeKvCache(const WorkerConfig& config,
                                          const KvCacheBudget& plan,
                                          const KernelBackend& backend,
                                          Model& model) {
  if (config.kv_cache_bytes_given || !backend.space().has_value()) {
    return plan;
  }
  QUIRE_RETURN_IF_ERROR(model.Reserve(UsualSteps(model.config())));
  const DeviceSpace space = *backend.space();
  const auto total = static_cast<double>(space.total_bytes);
  const auto kept = static_cast<int64_t>((1.0 - config.gpu.memory_utilization) * total);
  const int64_t slack =
      std::min(kMaxSlackBytes, space.total_bytes / kSlackParts) + backend.max_record_bytes();
  KvCacheBudget budget = plan;
  budget.bytes = space.free_bytes - kept - slack;
  if (budget.bytes <= 0) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "MEMORY",
                 absl::StrCat("the GPU has no memory left for a KV cache (free ",
                              space.free_bytes,
                              " of ",
                              space.total_bytes,
                              " bytes): raise --gpu-memory-utilization or serve a smaller model"));
  }
  QUIRE_RETURN_IF_ERROR(
      CheckHoldsBlocks(budget, MinBlockBytes(backend, model.config(), model.share())));
  return budget;
}

}  // namespace quire
