#include "worker/model/decoder_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/fold_hash.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/model/rope_config.h"
#include "worker/model/kv_cache_scales.h"

namespace quire {
namespace {

// Returns a view of the batch's arrays in host memory.
StepInputs ViewOf(const Batch& batch) {
  return {
      .num_tokens = batch.num_tokens(),
      .num_seqs = batch.num_seqs(),
      .num_logits = static_cast<int32_t>(batch.logits_rows.size()),
      .max_blocks_per_seq = batch.max_blocks_per_seq,
      .shares_new_tokens = batch.shares_new_tokens,
      .token_ids = batch.token_ids.data(),
      .positions = batch.positions.data(),
      .slot_mapping = batch.slot_mapping.data(),
      .query_start = batch.query_start.data(),
      .seq_lens = batch.seq_lens.data(),
      .block_tables = batch.block_tables.data(),
      .first_places = batch.first_places.empty() ? nullptr : batch.first_places.data(),
      .logits_rows = batch.logits_rows.data(),
      .begins_in_prompt = batch.begins_in_prompt.empty() ? nullptr : batch.begins_in_prompt.data()};
}

// Returns the checkpoint's scales if the cache is fp8 and keeps no scale per token, else scales of
// 1.
KvCacheScales ScalesFor(const LayerWeights& weights, const KvCacheLayout& layout) {
  return layout.dtype == DType::kF8E4M3 && !layout.has_scales() ? weights.kv_cache_scales
                                                                : KvCacheScales{};
}

// Returns a batch of padding only. Each of its sequences has length 0 and one new token, which has
// no slot.
Batch PaddingBatch(int32_t num_seqs, bool reads_windows) {
  const auto count = static_cast<size_t>(num_seqs);
  Batch batch;
  batch.token_ids.resize(count);
  batch.positions.resize(count);
  batch.slot_mapping.resize(count, -1);
  batch.query_start.resize(count + 1);
  std::iota(batch.query_start.begin(), batch.query_start.end(), 0);
  batch.seq_lens.resize(count);
  batch.max_blocks_per_seq = 1;
  batch.block_tables.resize(count, kNullBlockId);
  batch.first_places.resize(reads_windows ? count : 0);
  batch.logits_rows.resize(count);
  std::iota(batch.logits_rows.begin(), batch.logits_rows.end(), 0);
  return batch;
}

}  // namespace

DecoderModel::DecoderModel(ModelConfig config,
                           const RankShare& share,
                           DecoderWeights weights,
                           KernelBackend& backend)
    : config_(std::move(config)), share_(share), weights_(std::move(weights)), backend_(backend) {
  for (int32_t rank = 0; rank < share_.size; ++rank) {
    vocab_widths_.push_back(VocabOf(config_, {.rank = rank, .size = share_.size}).count);
  }
  if (config_.rope.has_value()) {
    const int32_t positions = config_.max_position_embeddings;
    rope_.emplace(*config_.rope, config_.head_dim, positions, backend_);
    rope_length_ = RopeLength(config_.rope, positions);
  }
}

void DecoderModel::Begin(const Batch& batch, const KvCacheView& cache) {
  inputs_ = backend_.BeginStep(ViewOf(batch));
  num_rows_ = inputs_.num_tokens;
  // If memory runs out, the worker cannot go on: its process ends, and the scheduler recovers from
  // the loss.
  QUIRE_CHECK(ReserveWorkspace(inputs_.num_tokens, inputs_.num_logits).ok());
  if (rope_.has_value() && !batch.positions.empty()) {
    const auto last = std::max_element(batch.positions.begin(), batch.positions.end());
    QUIRE_CHECK(rope_->Reserve(int64_t{*last} + 1).ok());
  }
  backend_.AnnounceOperations([&] { Compute(inputs_, batch.num_candidates, cache); });
}

float* DecoderModel::Run(const Batch& batch, const KvCacheView& cache) {
  backend_.RunStep([&] { Compute(inputs_, batch.num_candidates, cache); });
  if (!share_.is_whole()) {
    row_hash_ = backend_.space().has_value() ? 0 : HashRows(num_rows_);
  }
  return GatheredLogits();
}

// Runs each batch twice. Only the second run can be recorded, because the first run allocates and
// waits. Announces sampling, because nearly all later steps sample too.
void DecoderModel::RecordSteps(int32_t max_seqs, const KvCacheView& cache) {
  constexpr int kRuns = 2;
  const SamplingParams greedy = {.temperature = 0.0F};
  for (const int32_t num_seqs : backend_.BatchesToRecord(max_seqs)) {
    const Batch padding = PaddingBatch(num_seqs, cache.windows != nullptr);
    const std::vector<SamplingRow> rows(static_cast<size_t>(num_seqs), {.params = &greedy});
    for (int run = 0; run < kRuns; ++run) {
      backend_.AnnounceSampling(rows);
      Forward(padding, cache);
    }
  }
  backend_.AnnounceSampling({});
  backend_.WaitForOperations();
}

float* DecoderModel::LogitsOf(int32_t first_row, int32_t num_rows) {
  QUIRE_CHECK(first_row >= 0 && num_rows > 0 && first_row + num_rows <= num_rows_);
  const auto* rows = static_cast<const int32_t*>(workspace_.row_ids.data()) + first_row;
  const std::vector<int32_t> whole_rows(static_cast<size_t>(num_rows), 0);
  Logits(rows, num_rows, whole_rows);
  return GatheredLogits();
}

float* DecoderModel::GatheredLogits() {
  if (share_.is_whole()) {
    return workspace_.logits.floats();
  }
  return share_.rank == 0 ? workspace_.gathered.floats() : nullptr;
}

void DecoderModel::FixRope(int32_t length) {
  if (length == 0) {
    return;
  }
  LogInfo("RoPE depends on the context length and is fixed for max_model_len",
          {{"rope_length", absl::StrCat(length)},
           {"original_max_position_embeddings",
            absl::StrCat(config_.rope->original_max_position_embeddings)}});
  if (length != rope_length_) {
    rope_.emplace(*config_.rope, config_.head_dim, length, backend_);
    rope_length_ = length;
  }
}

absl::Status DecoderModel::Reserve(const StepBounds& bounds) {
  QUIRE_RETURN_IF_ERROR(
      ReserveWorkspace(std::max(bounds.max_tokens, bounds.max_seqs) + kMaxPaddingRows,
                       bounds.max_seqs + kMaxPaddingRows));
  if (!backend_.space().has_value()) {
    return absl::OkStatus();
  }
  if (rope_.has_value() && bounds.max_context_tokens > 0) {
    QUIRE_RETURN_IF_ERROR(rope_->Reserve(bounds.max_context_tokens));
  }
  return backend_.ReserveForSteps(bounds);
}

absl::Status DecoderModel::ReserveWorkspace(int32_t max_tokens, int32_t max_logits) {
  const int64_t num_tokens = max_tokens;
  const int64_t num_logits = max_logits;
  const int64_t q_heads = share_.heads.count;
  const int64_t qkv_heads = q_heads + int64_t{2} * share_.kv_heads.count;
  const int64_t intermediate = share_.intermediate.count;
  const bool gathers = !share_.is_whole() && share_.rank == 0;
  const int64_t projected_width = weights_.project_in != nullptr ? config_.embedding_dim : 0;
  const DType activation = backend_.activation_dtype();
  Workspace& w = workspace_;
  struct Need {
    DeviceBuffer* buffer;
    DType dtype;
    int64_t elements;
  };
  for (const Need& need : {
           Need{&w.residual, DType::kF32, num_tokens * config_.hidden_size},
           Need{&w.hidden, activation, num_tokens * config_.hidden_size},
           Need{&w.delta, activation, num_tokens * config_.hidden_size},
           Need{&w.embedding, activation, num_tokens * projected_width},
           Need{&w.qkv, activation, num_tokens * qkv_heads * config_.head_dim},
           Need{&w.attention, activation, num_tokens * q_heads * config_.head_dim},
           Need{&w.mlp, activation, num_tokens * intermediate * (config_.gated_mlp ? 2 : 1)},
           Need{&w.activated, activation, num_tokens * intermediate},
           Need{&w.rows, DType::kF32, num_logits * config_.hidden_size},
           Need{&w.last, activation, num_logits * config_.hidden_size},
           Need{&w.projected, activation, num_logits * projected_width},
           Need{&w.logits, DType::kF32, num_logits * share_.vocab.count},
           Need{&w.gathered, DType::kF32, gathers ? num_logits * config_.vocab_size : 0},
       }) {
    QUIRE_RETURN_IF_ERROR(need.buffer->Reserve(backend_, need.elements * SizeOf(need.dtype)));
  }
  if (w.row_ids.capacity_bytes() < num_tokens * int64_t{sizeof(TokenId)}) {
    std::vector<TokenId> row_ids(static_cast<size_t>(num_tokens));
    std::iota(row_ids.begin(), row_ids.end(), 0);
    QUIRE_RETURN_IF_ERROR(w.row_ids.Assign<TokenId>(backend_, row_ids));
  }
  return absl::OkStatus();
}

void DecoderModel::Compute(const StepInputs& inputs,
                           std::span<const int32_t> num_candidates,
                           const KvCacheView& cache) {
  Embed(inputs);
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    if (config_.norm_before) {
      RunPreNormLayer(layer, inputs, cache);
    } else {
      RunPostNormLayer(layer, inputs, cache);
    }
  }
  if (inputs.num_logits > 0) {
    Logits(inputs.logits_rows, inputs.num_logits, num_candidates);
  }
}

void DecoderModel::Embed(const StepInputs& inputs) {
  Workspace& w = workspace_;
  const bool has_positions = weights_.position_table.rows > 0;
  EmbeddingParams tokens = {.num_tokens = inputs.num_tokens,
                            .token_ids = inputs.token_ids,
                            .table = weights_.token_table.view(),
                            .packed_table = weights_.lm_head.get(),
                            .first_token = share_.vocab.begin};
  pending_delta_ = nullptr;
  if (weights_.project_in != nullptr) {
    // Rows of the position table have hidden_size columns, so these rows are added after the
    // projection from embedding_dim to hidden_size.
    const DType activation = backend_.activation_dtype();
    tokens.out_dtype = activation;
    tokens.out = w.embedding.data();
    backend_.Embed(tokens);
    AllReduceIfSplit({.num_rows = inputs.num_tokens,
                      .width = config_.embedding_dim,
                      .merge = Merge::kDisjoint,
                      .dtype = activation,
                      .data = w.embedding.data()});
    backend_.Linear({.num_tokens = inputs.num_tokens,
                     .x = w.embedding.data(),
                     .y = w.hidden.data(),
                     .weight = weights_.project_in.get()});
    EmbedPositions(inputs, w.hidden.data(), activation);
  } else {
    tokens.out = w.residual.data();
    if (has_positions && share_.is_whole()) {
      tokens.position_table = weights_.position_table.view();
      tokens.positions = inputs.positions;
      tokens.position_offset = config_.learned_position_offset;
    }
    backend_.Embed(tokens);
    AllReduceIfSplit({.num_rows = inputs.num_tokens,
                      .width = config_.hidden_size,
                      .merge = Merge::kDisjoint,
                      .data = w.residual.data()});
    if (has_positions && !share_.is_whole()) {
      EmbedPositions(inputs, w.residual.data(), DType::kF32);
    }
  }
  if (config_.embedding_norm) {
    Normalize(weights_.embedding_norm, /*delta=*/nullptr, /*replace=*/true, inputs.num_tokens);
  }
  if (!config_.norm_before) {
    // With post-norm the first sub-layer reads the embedding without a norm: hidden = residual.
    // Embed only converts the residual to the activation type here.
    backend_.Embed({.num_tokens = inputs.num_tokens,
                    .token_ids = static_cast<const TokenId*>(w.row_ids.data()),
                    .table = {.data = w.residual.data(),
                              .format = WeightFormat::kF32,
                              .rows = inputs.num_tokens,
                              .cols = config_.hidden_size},
                    .out_dtype = backend_.activation_dtype(),
                    .out = w.hidden.data()});
  }
}

// Sets the residual to `rows` plus their position embeddings. Embed takes `rows` as its token
// table; `rows` may be the residual itself.
void DecoderModel::EmbedPositions(const StepInputs& inputs, void* rows, DType dtype) {
  EmbeddingParams params = {.num_tokens = inputs.num_tokens,
                            .token_ids = static_cast<const TokenId*>(workspace_.row_ids.data()),
                            .table = {.data = rows,
                                      .format = FormatOf(dtype),
                                      .rows = inputs.num_tokens,
                                      .cols = config_.hidden_size},
                            .positions = inputs.positions,
                            .position_offset = config_.learned_position_offset,
                            .out = workspace_.residual.data()};
  if (weights_.position_table.rows > 0) {
    params.position_table = weights_.position_table.view();
  }
  backend_.Embed(params);
}

void DecoderModel::AllReduceIfSplit(const AllReduceParams& params) {
  if (!share_.is_whole()) {
    backend_.AllReduce(params);
  }
}

void DecoderModel::RunPreNormLayer(int32_t layer,
                                   const StepInputs& inputs,
                                   const KvCacheView& cache) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const bool replace = config_.residual_after_norm;
  Normalize(weights.attention_norm, pending_delta_, replace, inputs.num_tokens);
  Attend(layer, inputs, cache);
  Normalize(weights.mlp_norm, workspace_.delta.data(), replace, inputs.num_tokens);
  RunMlp(layer, inputs.num_tokens);
  pending_delta_ = workspace_.delta.data();
}

void DecoderModel::RunPostNormLayer(int32_t layer,
                                    const StepInputs& inputs,
                                    const KvCacheView& cache) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  Attend(layer, inputs, cache);
  Normalize(weights.attention_norm, workspace_.delta.data(), /*replace=*/true, inputs.num_tokens);
  RunMlp(layer, inputs.num_tokens);
  Normalize(weights.mlp_norm, workspace_.delta.data(), /*replace=*/true, inputs.num_tokens);
}

void DecoderModel::Attend(int32_t layer, const StepInputs& inputs, const KvCacheView& cache) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const KvCacheScales scales = ScalesFor(weights, cache.layout);
  void* qkv = workspace_.qkv.data();
  backend_.Linear({.num_tokens = inputs.num_tokens,
                   .x = workspace_.hidden.data(),
                   .y = qkv,
                   .weight = weights.qkv.get()});
  backend_.PrepareAttention({.num_tokens = inputs.num_tokens,
                             .num_heads = share_.heads.count,
                             .layer = layer,
                             .qkv = qkv,
                             .q_norm = weights.q_norm.floats(),
                             .k_norm = weights.k_norm.floats(),
                             .norm_eps = static_cast<float>(config_.norm_eps),
                             .rope_cos = rope_.has_value() ? rope_->cos() : nullptr,
                             .rope_sin = rope_.has_value() ? rope_->sin() : nullptr,
                             .positions = inputs.positions,
                             .slot_mapping = inputs.slot_mapping,
                             .cache = cache,
                             .k_scale = scales.key,
                             .v_scale = scales.value});
  const bool windowed = config_.sliding_window.has_value() &&
                        config_.layer_uses_sliding_window[static_cast<size_t>(layer)];
  backend_.PagedAttention(
      {.num_seqs = inputs.num_seqs,
       .num_heads = share_.heads.count,
       .layer = layer,
       .q = qkv,
       .q_row_stride =
           (int64_t{share_.heads.count} + int64_t{2} * share_.kv_heads.count) * config_.head_dim,
       .out = workspace_.attention.data(),
       .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim))),
       .sliding_window = windowed ? *config_.sliding_window : 0,
       .alibi_slopes = weights_.alibi_slopes.floats(),
       .query_start = inputs.query_start,
       .seq_lens = inputs.seq_lens,
       .block_tables = inputs.block_tables,
       .max_blocks_per_seq = inputs.max_blocks_per_seq,
       .first_places = inputs.first_places,
       .cache = cache,
       .k_scale = scales.key,
       .v_scale = scales.value});
  backend_.Linear({.num_tokens = inputs.num_tokens,
                   .x = workspace_.attention.data(),
                   .y = workspace_.delta.data(),
                   .weight = weights.attention_out.get()});
  AllReduceIfSplit({.num_rows = inputs.num_tokens,
                    .width = config_.hidden_size,
                    .dtype = backend_.activation_dtype(),
                    .data = workspace_.delta.data(),
                    .bias = weights.attention_out_bias.floats()});
}

void DecoderModel::RunMlp(int32_t layer, int64_t num_tokens) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  backend_.Mlp({.activation = config_.activation,
                .gated = config_.gated_mlp,
                .num_tokens = num_tokens,
                .width = share_.intermediate.count,
                .x = workspace_.hidden.data(),
                .in = weights.mlp_in.get(),
                .between = workspace_.mlp.data(),
                .activated = workspace_.activated.data(),
                .out = weights.mlp_out.get(),
                .y = workspace_.delta.data()});
  AllReduceIfSplit({.num_rows = num_tokens,
                    .width = config_.hidden_size,
                    .dtype = backend_.activation_dtype(),
                    .data = workspace_.delta.data(),
                    .bias = weights.mlp_out_bias.floats()});
}

void DecoderModel::Normalize(const NormWeights& norm,
                             const void* delta,
                             bool replace,
                             int64_t num_tokens) {
  backend_.Norm({.kind = config_.norm,
                 .num_tokens = num_tokens,
                 .width = config_.hidden_size,
                 .residual = workspace_.residual.floats(),
                 .delta = delta,
                 .weight = norm.weight.floats(),
                 .bias = norm.bias.floats(),
                 .eps = static_cast<float>(config_.norm_eps),
                 .out = workspace_.hidden.data(),
                 .out_f32 = replace ? workspace_.residual.floats() : nullptr});
}

// Only the listed rows go through the last norm and the output matrix. Embed gathers these rows and
// adds the pending delta: it takes the residual as its token table and the pending delta as its
// position table.
void DecoderModel::Logits(const int32_t* rows,
                          int64_t num_logits,
                          std::span<const int32_t> num_candidates) {
  Workspace& w = workspace_;
  EmbeddingParams gather = {.num_tokens = num_logits,
                            .token_ids = rows,
                            .table = {.data = w.residual.data(),
                                      .format = WeightFormat::kF32,
                                      .rows = num_rows_,
                                      .cols = config_.hidden_size},
                            .out = w.rows.data()};
  if (pending_delta_ != nullptr) {
    gather.position_table = gather.table;
    gather.position_table.data = pending_delta_;
    gather.position_table.format = FormatOf(backend_.activation_dtype());
    gather.positions = rows;
  }
  if (config_.final_norm) {
    backend_.Embed(gather);
    backend_.Norm({.kind = config_.norm,
                   .num_tokens = num_logits,
                   .width = config_.hidden_size,
                   .residual = w.rows.floats(),
                   .weight = weights_.final_norm.weight.floats(),
                   .bias = weights_.final_norm.bias.floats(),
                   .eps = static_cast<float>(config_.norm_eps),
                   .out = w.last.data()});
  } else {
    gather.out_dtype = backend_.activation_dtype();
    gather.out = w.last.data();
    backend_.Embed(gather);
  }
  const void* last = w.last.data();
  if (weights_.project_out != nullptr) {
    backend_.Linear({.num_tokens = num_logits,
                     .x = last,
                     .y = w.projected.data(),
                     .weight = weights_.project_out.get()});
    last = w.projected.data();
  }
  backend_.Linear({.num_tokens = num_logits,
                   .x = last,
                   .y = w.logits.data(),
                   .weight = weights_.lm_head.get(),
                   .f32_out = true});
  if (!share_.is_whole()) {
    backend_.Gather({.num_rows = num_logits,
                     .widths = vocab_widths_,
                     .num_candidates = num_candidates,
                     .part = w.logits.floats(),
                     .whole = w.gathered.floats()});
  }
}

// Hashing the rows after the last layer suffices. A layer computes its residual from the previous
// layer's residual and from sums over the ranks. The sums are equal on all ranks. So if a rank's
// residual differed after any layer, it almost certainly differs after the last layer too. The hash
// cannot detect an error made before a sum over the ranks, because the sum spreads the error to all
// ranks alike.
uint64_t DecoderModel::HashRows(int64_t num_tokens) const {
  FoldHash hash;
  const auto add = [&](const void* rows, DType dtype) {
    const auto bytes = static_cast<size_t>(num_tokens * config_.hidden_size * SizeOf(dtype));
    hash.AddBytes({static_cast<const char*>(rows), bytes});
  };
  add(workspace_.residual.data(), DType::kF32);
  if (pending_delta_ != nullptr) {
    add(pending_delta_, backend_.activation_dtype());
  }
  return std::max<uint64_t>(1, hash.value());
}

}  // namespace quire
