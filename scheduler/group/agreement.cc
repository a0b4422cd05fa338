#include "scheduler/group/agreement.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/digest.h"
#include "common/model/rope_config.h"
#include "common/step/step_plan_check.h"
#include "scheduler/core/admission.h"

namespace quire {
namespace {

// Upper bound on the bytes of each text in a WorkerHello, for example `rendezvous`.
constexpr size_t kMaxHelloBytes = 512;

// Upper bound on the bytes of a block. It is far above any real block, but small enough that sums
// of block bytes do not overflow.
constexpr int64_t kMaxBlockBytes = int64_t{1} << 32;

absl::Status Mismatch(std::string_view field, std::string_view rule) {
  return Error(absl::StatusCode::kFailedPrecondition,
               "CONFIG_MISMATCH",
               absl::StrCat(ToAbsl(field), ": ", ToAbsl(rule)));
}

// The error message omits the text, because a worker that breaks the limit may have sent anything.
absl::Status CheckLength(std::string_view field, std::string_view text) {
  if (text.size() <= kMaxHelloBytes) {
    return absl::OkStatus();
  }
  return Error(
      absl::StatusCode::kFailedPrecondition,
      "PROTOCOL_VIOLATION",
      absl::StrCat(
          ToAbsl(field), ": too long (got ", text.size(), " bytes, limit ", kMaxHelloBytes, ")"));
}

// Returns the number of blocks that share a page of virtual memory. Returns 1 if a block takes one
// or several pages, or if the worker maps no pages.
int64_t BlocksPerPage(const KvMemory& memory, int64_t block_bytes) {
  return block_bytes > 0 ? std::max<int64_t>(1, memory.page_bytes / block_bytes) : 1;
}

// Refuses impossible values of KvMemory. The block pool relies on the page size, and other wrong
// values would mislead operators.
absl::Status CheckKvMemory(const KvMemory& memory, int64_t block_bytes) {
  const int64_t per_page = BlocksPerPage(memory, block_bytes);
  const bool is_multiple =
      per_page > 1 ? memory.page_bytes % block_bytes == 0 && (per_page & (per_page - 1)) == 0
                   : memory.page_bytes == 0 || block_bytes % memory.page_bytes == 0;
  if (memory.page_bytes < 0 || per_page > kMaxBlocksPerPage || !is_multiple ||
      memory.page_bytes > per_page * block_bytes) {
    return Mismatch("window_page_bytes",
                    "must divide block_bytes, or be block_bytes times a power of two");
  }
  if (memory.padding_bytes < 0 || memory.padding_bytes >= std::max<int64_t>(1, memory.page_bytes)) {
    return Mismatch("block_padding_bytes", "must be at least 0 and smaller than a page");
  }
  if (memory.max_places.value_or(0) < 0) {
    return Mismatch("max_window_places", "must not be negative");
  }
  return absl::OkStatus();
}

absl::Status CheckNumerics(const WorkerHello& hello,
                           int32_t rank,
                           const Numerics& pinned,
                           bool may_change) {
  if (hello.model_hash != pinned.model_hash ||
      hello.weights_sum != pinned.weights_sums[static_cast<size_t>(rank)]) {
    return Mismatch("model_hash", "the worker's weights differ from those of the previous worker");
  }
  if (may_change) {
    return absl::OkStatus();
  }
  if (hello.determinism_fingerprint != pinned.backend) {
    return Mismatch("determinism_fingerprint",
                    absl::StrCat("the worker's numerics differ from the previous worker's, see "
                                 "--allow-changed-numerics (got ",
                                 hello.determinism_fingerprint,
                                 ", expected ",
                                 pinned.backend,
                                 ")"));
  }
  if (hello.kv_cache_dtype != pinned.kv_cache_dtype) {
    return Mismatch("kv_cache_dtype",
                    absl::StrCat("the worker's KV cache type differs from the previous worker's, "
                                 "see --allow-changed-numerics (got ",
                                 ToAbsl(NameOf(*hello.kv_cache_dtype)),
                                 ", expected ",
                                 ToAbsl(NameOf(pinned.kv_cache_dtype)),
                                 ")"));
  }
  return absl::OkStatus();
}

// Returns an error if the rank differs from rank 0, or is the same process.
absl::Status CheckEqual(const WorkerHello& hello, const WorkerHello& first, size_t rank) {
  const auto differs = [rank](std::string_view field) {
    return Mismatch(absl::StrCat("rank ", rank, ": ", ToAbsl(field)), "differs from rank 0");
  };
  if (hello.uuid == first.uuid) {
    return Mismatch(absl::StrCat("rank ", rank, ": uuid"), "is the same process as rank 0");
  }
  if (hello.model_hash != first.model_hash) {
    return differs("model_hash");
  }
  if (hello.determinism_fingerprint != first.determinism_fingerprint) {
    return differs("determinism_fingerprint");
  }
  if (hello.kv_cache_dtype != first.kv_cache_dtype) {
    return differs("kv_cache_dtype");
  }
  if (hello.block_bytes != first.block_bytes) {
    return differs("block_bytes");
  }
  return absl::OkStatus();
}

// Returns the smallest full_step_tokens of all ranks: in a larger step, the other ranks would wait
// for the rank with the smallest value. A rank without a value counts as kDefaultFullStepTokens.
int32_t FullStepTokens(std::span<const WorkerHello> hellos) {
  constexpr int32_t kDefaultFullStepTokens = 256;
  int32_t num_tokens = kMaxTokensPerStepLimit;
  for (const WorkerHello& hello : hellos) {
    num_tokens = std::min(
        num_tokens, hello.full_step_tokens > 0 ? hello.full_step_tokens : kDefaultFullStepTokens);
  }
  return num_tokens;
}

// Returns limits that every rank can keep. All ranks use the same block ids, so the smallest pool
// bounds all ranks.
StepLimits LimitsOf(std::span<const WorkerHello> hellos, const GroupSettings& settings) {
  StepLimits limits;
  limits.num_blocks = settings.num_blocks_override.value_or(kMaxBlocksLimit);
  int32_t num_host_blocks = settings.wants_host_blocks ? kMaxHostBlocksLimit : 0;
  for (const WorkerHello& hello : hellos) {
    limits.num_blocks = std::min(limits.num_blocks, hello.num_blocks_max);
    num_host_blocks = std::min(num_host_blocks, std::max(0, hello.num_host_blocks_max));
    limits.wants_next_blocks = limits.wants_next_blocks || hello.wants_next_blocks;
    // BlocksPerPage is a power of two on each rank. So the largest value is a multiple of all
    // others.
    limits.blocks_per_page =
        std::max(limits.blocks_per_page,
                 static_cast<int32_t>(BlocksPerPage(hello.kv_memory, hello.block_bytes)));
  }
  // The host pool is never larger than the device pool, as in the PagedAttention paper. A preempted
  // request that does not fit into the host pool is recomputed.
  limits.num_host_blocks = std::min(num_host_blocks, limits.num_blocks);
  limits.block_size_tokens = settings.block_size_tokens;
  limits.max_sequences = settings.max_sequences;
  limits.max_tokens_per_step = settings.max_tokens_per_step.value_or(FullStepTokens(hellos));
  limits.vocab_size = settings.model.vocab_size;
  limits.max_model_len = settings.max_model_len.value_or(settings.model.max_position_embeddings);
  const int32_t window = WindowOfAllLayers(settings.model);
  limits.sliding_window = window < limits.max_model_len ? window : 0;
  return limits;
}

// Makes the error for limits that workers would refuse in every epoch.
absl::Status LimitsRefusal(std::string_view message) {
  return Error(absl::StatusCode::kFailedPrecondition, "STEP_LIMITS", message);
}

absl::Status CheckLimits(const StepLimits& limits, const ModelConfig& model) {
  const absl::Status valid = Validate(limits);
  if (!valid.ok()) {
    return LimitsRefusal(ToStd(valid.message()));
  }
  if (limits.max_model_len > model.max_position_embeddings) {
    return LimitsRefusal(
        absl::StrCat("max_model_len: must be at most the model's number of positions (got ",
                     limits.max_model_len,
                     ", limit ",
                     model.max_position_embeddings,
                     ")"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Numerics::fingerprint() const {
  uint64_t model = std::accumulate(weights_sums.begin(), weights_sums.end(), model_hash);
  if (rope_length != 0) {
    Digest digest;
    digest.AddInt(int64_t{rope_length});
    model += digest.value();
  }
  return absl::StrCat(
      backend, "/", ToAbsl(NameOf(kv_cache_dtype)), "/", absl::Hex(model, absl::kZeroPad16));
}

absl::Status CheckHello(const WorkerHello& hello,
                        int32_t rank,
                        const GroupSettings& settings,
                        const std::optional<Numerics>& pinned) {
  QUIRE_RETURN_IF_ERROR(CheckLength("worker_uuid", hello.uuid));
  QUIRE_RETURN_IF_ERROR(CheckLength("determinism_fingerprint", hello.determinism_fingerprint));
  QUIRE_RETURN_IF_ERROR(CheckLength("rendezvous", hello.rendezvous));
  if (hello.vocab_size != settings.model.vocab_size) {
    return Mismatch("vocab_size",
                    absl::StrCat("the worker loaded a different model (got ",
                                 hello.vocab_size,
                                 ", expected ",
                                 settings.model.vocab_size,
                                 ")"));
  }
  if (hello.config_hash != HashOf(settings.model)) {
    return Mismatch("config_hash", "the worker's config.json differs from the scheduler's");
  }
  if (hello.block_bytes < 0 || hello.block_bytes > kMaxBlockBytes) {
    return Mismatch("block_bytes", "is not a possible size of a block");
  }
  QUIRE_RETURN_IF_ERROR(CheckKvMemory(hello.kv_memory, hello.block_bytes));
  if (!hello.kv_cache_dtype.has_value() ||
      (settings.kv_cache_dtype.has_value() && hello.kv_cache_dtype != settings.kv_cache_dtype)) {
    return Mismatch("kv_cache_dtype", "the worker cannot use the requested --kv-cache-dtype");
  }
  return pinned.has_value() ? CheckNumerics(hello, rank, *pinned, settings.allow_changed_numerics)
                            : absl::OkStatus();
}

absl::StatusOr<Agreement> Agree(std::span<const WorkerHello> hellos,
                                const GroupSettings& settings,
                                const std::optional<Numerics>& pinned) {
  const WorkerHello& first = hellos.front();
  for (size_t rank = 1; rank < hellos.size(); ++rank) {
    QUIRE_RETURN_IF_ERROR(CheckEqual(hellos[rank], first, rank));
  }
  StepLimits limits = LimitsOf(hellos, settings);
  if (limits.num_blocks < 2) {
    return Error(
        absl::StatusCode::kFailedPrecondition,
        "NO_MEMORY",
        absl::StrCat("num_blocks: the workers have too little memory for the KV cache (got ",
                     limits.num_blocks,
                     ", minimum 2)"));
  }
  QUIRE_RETURN_IF_ERROR(CheckLimits(limits, settings.model));
  // Computed before the pool bounds max_model_len below, else a smaller pool would change RoPE and
  // so the bits of a stream.
  const int32_t rope_length = RopeLength(settings.model.rope, limits.max_model_len);
  // Lowers max_model_len if the pool has too few blocks for one sequence of that length. With a
  // sliding window, a sequence may be longer than the pool.
  if (NumBlocksAtMost(1, limits.max_model_len, limits) > limits.num_blocks - 1) {
    limits.max_model_len = (limits.num_blocks - 1) * limits.block_size_tokens;
  }
  if (const absl::Status fits = CheckMessageFits(limits); !fits.ok()) {
    return LimitsRefusal(ToStd(fits.message()));
  }
  if (pinned.has_value() && rope_length != pinned->rope_length &&
      !settings.allow_changed_numerics) {
    return Mismatch("max_model_len",
                    absl::StrCat("RoPE depends on it and would change, see "
                                 "--allow-changed-numerics (got ",
                                 rope_length,
                                 " tokens, expected ",
                                 pinned->rope_length,
                                 ")"));
  }
  std::vector<uint64_t> weights_sums;
  weights_sums.reserve(hellos.size());
  for (const WorkerHello& hello : hellos) {
    weights_sums.push_back(hello.weights_sum);
  }
  return Agreement{.limits = limits,
                   .numerics = {.model_hash = first.model_hash,
                                .weights_sums = std::move(weights_sums),
                                .backend = first.determinism_fingerprint,
                                .kv_cache_dtype = *first.kv_cache_dtype,
                                .rope_length = rope_length},
                   .block_bytes = first.block_bytes};
}

}  // namespace quire
