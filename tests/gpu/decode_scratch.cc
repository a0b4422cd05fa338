#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "tests/gpu/bench_attention.h"

namespace quire::gpu {

int32_t SplitTokensFor(const AttentionShape& shape, DecodeKernel kernel) {
  const int32_t queries = shape.num_heads / shape.num_kv_heads;  // that share a KV head
  if (kernel == DecodeKernel::kLines) {
    constexpr int32_t kMostQueries = 10;
    return queries > kMostQueries ? 512 : 256;
  }
  constexpr int32_t kTokensPerQuery = 50;
  const auto wanted = static_cast<uint32_t>(kTokensPerQuery * queries);
  return static_cast<int32_t>(std::clamp(std::bit_ceil(wanted), 512U, 1024U));
}

int32_t DecodeCtasFor(const AttentionBatch& batch, const DecodePlan& plan) {
  const AttentionShape& shape = batch.shape();
  int32_t num_ctas = 0;
  int error = 0;
  if (plan.kernel == DecodeKernel::kSplits) {
    const bool one_query = plan.max_query_tokens == 1;
    error = one_query ? DecodeGridSize(shape.dtype, shape.cache_dtype, shape.head_dim, &num_ctas)
                      : kUnsupported;
  } else {
    error = DecodeLinesGridSize(batch.Args(0), plan, shape.dtype, &num_ctas);
    // Several queries may have at most 64 rows together (gpu_ops.h). A single query may have more.
    constexpr int32_t kMaxRows = 64;
    const int32_t rows = plan.max_query_tokens * shape.num_heads / shape.num_kv_heads;
    error = plan.max_query_tokens > 1 && rows > kMaxRows ? kUnsupported : error;
  }
  if (error == kUnsupported) {
    return 0;
  }
  Require(error, "decode grid size");
  return num_ctas;
}

std::optional<DecodeScratch> DecodeScratch::Make(Bench& bench,
                                                 const AttentionBatch& batch,
                                                 const DecodeOptions& options) {
  const auto num_seqs = static_cast<int32_t>(batch.sequences().size());
  DecodeScratch scratch;
  DecodePlan& plan = scratch.plan_;
  plan.kernel = options.kernel;
  plan.max_query_tokens = options.max_query_tokens;
  plan.split_tokens = options.split_tokens > 0 ? options.split_tokens
                                               : SplitTokensFor(batch.shape(), options.kernel);
  plan.num_decodes = num_seqs;
  if (options.only_sequence >= 0) {
    scratch.index_ = Buffer::Of(std::vector<int32_t>{options.only_sequence});
    plan.seq_index = scratch.index_.as<int32_t>();
    plan.num_decodes = 1;
  }
  const int32_t grid = DecodeCtasFor(batch, plan);
  if (grid == 0) {
    return std::nullopt;
  }
  plan.num_ctas =
      options.num_ctas > 0
          ? options.num_ctas
          : std::max(1, static_cast<int32_t>(std::lround(options.ctas_over_grid * grid)));
  scratch.split_start_ = Buffer((plan.num_decodes + 1) * int64_t{sizeof(int32_t)});
  plan.split_start = scratch.split_start_.as<int32_t>();
  Require(PlanDecode(batch.Args(0), plan, scratch.split_start_.as<int32_t>(), bench.stream()),
          "plan decode");
  bench.Wait();
  scratch.AllocatePartials(batch);
  return scratch;
}

DecodeScratch DecodeScratch::MakeFastest(Bench& bench, const AttentionBatch& batch) {
  auto scratch = Make(bench, batch, {.kernel = DecodeKernel::kLines});
  return scratch.has_value() ? std::move(*scratch) : std::move(*Make(bench, batch, {}));
}

void DecodeScratch::AllocatePartials(const AttentionBatch& batch) {
  constexpr int64_t kFloat = sizeof(float);
  const PagedAttentionParams attention = batch.Args(0);
  if (plan_.kernel == DecodeKernel::kLines) {
    partial_out_ = Buffer(DecodePartialFloats(attention, plan_) * kFloat);
    arrivals_ = Buffer::Of(std::vector<int32_t>(static_cast<size_t>(plan_.num_ctas), 0));
    plan_.arrivals = arrivals_.as<int32_t>();
  } else {
    const int64_t rows = int64_t{split_start_.ToHost<int32_t>().back()} * attention.num_heads;
    partial_out_ = Buffer(rows * batch.shape().head_dim * kFloat);
    partial_state_ = Buffer(rows * 2 * kFloat);
    plan_.partial_state = partial_state_.as<float>();
  }
  plan_.partial_out = partial_out_.as<float>();
}

}  // namespace quire::gpu
