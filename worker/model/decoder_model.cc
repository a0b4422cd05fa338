#include "worker/model/decoder_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/model/weight_files.h"
#include "worker/model/weight_loader.h"

namespace quire {
namespace {

// A workspace that cannot be had ends the worker: nothing can be computed without it, and the
// scheduler recovers a lost worker.
void ReserveFloats(HostBuffer& buffer, int64_t rows, int64_t width) {
  QUIRE_CHECK(buffer.Reserve(rows * width * SizeOf(DType::kF32)));
}

const float* DataOrNull(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

DecoderModel::DecoderModel(ModelConfig config, DecoderWeights weights, KernelBackend& backend)
    : config_(std::move(config)), weights_(std::move(weights)), backend_(backend) {
  if (config_.rope.has_value()) {
    rope_.emplace(*config_.rope, config_.head_dim);
  }
}

float* DecoderModel::Forward(const Batch& batch, const KvCacheView& cache) {
  Reserve(batch);
  Embed(batch);
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    if (config_.norm_before) {
      RunPreNormLayer(layer, batch, cache);
    } else {
      RunPostNormLayer(layer, batch, cache);
    }
  }
  return Logits(batch);
}

void DecoderModel::Reserve(const Batch& batch) {
  const int64_t num_tokens = batch.num_tokens();
  const auto num_logits = static_cast<int64_t>(batch.logits_rows.size());
  const int64_t q_heads = config_.num_heads;
  const int64_t qkv_heads = q_heads + int64_t{2} * config_.num_kv_heads;
  Workspace& w = workspace_;
  for (HostBuffer* buffer : {&w.residual, &w.hidden, &w.delta}) {
    ReserveFloats(*buffer, num_tokens, config_.hidden_size);
  }
  ReserveFloats(w.qkv, num_tokens, qkv_heads * config_.head_dim);
  ReserveFloats(w.attention, num_tokens, q_heads * config_.head_dim);
  ReserveFloats(
      w.mlp, num_tokens, int64_t{config_.intermediate_size} * (config_.gated_mlp ? 2 : 1));
  ReserveFloats(w.activated, num_tokens, config_.intermediate_size);
  ReserveFloats(w.rows, 2 * num_logits, config_.hidden_size);
  ReserveFloats(w.logits, num_logits, config_.vocab_size);
  if (weights_.project_in != nullptr) {
    ReserveFloats(w.embedding, num_tokens, config_.embedding_dim);
    ReserveFloats(w.projected, num_logits, config_.embedding_dim);
    if (row_ids_.size() < static_cast<size_t>(num_tokens)) {
      row_ids_.resize(static_cast<size_t>(num_tokens));
      std::iota(row_ids_.begin(), row_ids_.end(), 0);
    }
  }
  if (rope_.has_value() && num_tokens > 0) {
    rope_->Reserve(int64_t{*std::max_element(batch.positions.begin(), batch.positions.end())} + 1);
  }
}

void DecoderModel::Embed(const Batch& batch) {
  const int64_t num_tokens = batch.num_tokens();
  EmbeddingParams tokens = {.num_tokens = num_tokens,
                            .token_ids = batch.token_ids.data(),
                            .table = weights_.token_table.view(),
                            .out = workspace_.residual.floats()};
  EmbeddingParams positions = {.num_tokens = num_tokens,
                               .positions = batch.positions.data(),
                               .position_offset = config_.learned_position_offset};
  if (weights_.position_table.rows > 0) {
    positions.position_table = weights_.position_table.view();
  }
  pending_delta_ = nullptr;
  if (weights_.project_in == nullptr) {
    tokens.position_table = positions.position_table;
    tokens.positions = positions.positions;
    tokens.position_offset = positions.position_offset;
    backend_.Embed(tokens);
    return;
  }
  // Positions are as wide as the layers: they are added to the projected rows, which are looked up
  // as the rows of a table.
  tokens.out = workspace_.embedding.floats();
  backend_.Embed(tokens);
  backend_.Linear({.num_tokens = num_tokens,
                   .x = workspace_.embedding.floats(),
                   .y = workspace_.hidden.floats(),
                   .weight = weights_.project_in.get()});
  positions.token_ids = row_ids_.data();
  positions.table = {.data = workspace_.hidden.data(),
                     .dtype = DType::kF32,
                     .rows = num_tokens,
                     .cols = config_.hidden_size};
  positions.out = workspace_.residual.floats();
  backend_.Embed(positions);
}

void DecoderModel::RunPreNormLayer(int32_t layer, const Batch& batch, const KvCacheView& cache) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const int64_t num_tokens = batch.num_tokens();
  float* residual = workspace_.residual.floats();
  float* hidden = workspace_.hidden.floats();
  Normalize(weights.attention_norm, residual, pending_delta_, hidden, num_tokens);
  Attend(layer, hidden, batch, cache);
  Normalize(weights.mlp_norm, residual, workspace_.delta.floats(), hidden, num_tokens);
  RunMlp(layer, hidden, num_tokens);
  pending_delta_ = workspace_.delta.floats();
}

void DecoderModel::RunPostNormLayer(int32_t layer, const Batch& batch, const KvCacheView& cache) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const int64_t num_tokens = batch.num_tokens();
  Workspace& w = workspace_;
  Attend(layer, w.residual.floats(), batch, cache);
  Normalize(
      weights.attention_norm, w.residual.floats(), w.delta.floats(), w.hidden.floats(), num_tokens);
  std::swap(w.residual, w.hidden);
  RunMlp(layer, w.residual.floats(), num_tokens);
  Normalize(weights.mlp_norm, w.residual.floats(), w.delta.floats(), w.hidden.floats(), num_tokens);
  std::swap(w.residual, w.hidden);
}

void DecoderModel::Attend(int32_t layer,
                          const float* x,
                          const Batch& batch,
                          const KvCacheView& cache) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  float* qkv = workspace_.qkv.floats();
  backend_.Linear(
      {.num_tokens = batch.num_tokens(), .x = x, .y = qkv, .weight = weights.qkv.get()});
  backend_.PrepareAttention({.num_tokens = batch.num_tokens(),
                             .num_heads = config_.num_heads,
                             .layer = layer,
                             .qkv = qkv,
                             .q_norm = DataOrNull(weights.q_norm),
                             .k_norm = DataOrNull(weights.k_norm),
                             .norm_eps = static_cast<float>(config_.norm_eps),
                             .rope_cos = rope_.has_value() ? rope_->cos() : nullptr,
                             .rope_sin = rope_.has_value() ? rope_->sin() : nullptr,
                             .positions = batch.positions.data(),
                             .slot_mapping = batch.slot_mapping.data(),
                             .cache = cache});
  const bool windowed = config_.sliding_window.has_value() &&
                        config_.layer_uses_sliding_window[static_cast<size_t>(layer)];
  backend_.PagedAttention(
      {.num_seqs = batch.num_seqs(),
       .num_heads = config_.num_heads,
       .layer = layer,
       .q = qkv,
       .q_row_stride =
           (int64_t{config_.num_heads} + int64_t{2} * config_.num_kv_heads) * config_.head_dim,
       .out = workspace_.attention.floats(),
       .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim))),
       .sliding_window = windowed ? *config_.sliding_window : 0,
       .query_start = batch.query_start.data(),
       .seq_lens = batch.seq_lens.data(),
       .block_tables = batch.block_tables.data(),
       .max_blocks_per_seq = batch.max_blocks_per_seq,
       .cache = cache});
  backend_.Linear({.num_tokens = batch.num_tokens(),
                   .x = workspace_.attention.floats(),
                   .y = workspace_.delta.floats(),
                   .weight = weights.attention_out.get()});
}

void DecoderModel::RunMlp(int32_t layer, const float* x, int64_t num_tokens) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  backend_.Linear({.num_tokens = num_tokens,
                   .x = x,
                   .y = workspace_.mlp.floats(),
                   .weight = weights.mlp_in.get()});
  backend_.Activate({.kind = config_.activation,
                     .gated = config_.gated_mlp,
                     .num_tokens = num_tokens,
                     .width = config_.intermediate_size,
                     .in = workspace_.mlp.floats(),
                     .out = workspace_.activated.floats()});
  backend_.Linear({.num_tokens = num_tokens,
                   .x = workspace_.activated.floats(),
                   .y = workspace_.delta.floats(),
                   .weight = weights.mlp_out.get()});
}

void DecoderModel::Normalize(
    const NormWeights& norm, float* residual, const float* delta, float* out, int64_t num_tokens) {
  backend_.Norm({.kind = config_.norm,
                 .num_tokens = num_tokens,
                 .width = config_.hidden_size,
                 .residual = residual,
                 .delta = delta,
                 .weight = norm.weight.data(),
                 .bias = DataOrNull(norm.bias),
                 .eps = static_cast<float>(config_.norm_eps),
                 .out = out});
}

// Only the rows that are asked for go through the last norm and the output matrix. They are looked
// up as rows of a table, the pending sum as rows of a position table: residual + delta.
float* DecoderModel::Logits(const Batch& batch) {
  const auto num_logits = static_cast<int64_t>(batch.logits_rows.size());
  if (num_logits == 0) {
    return workspace_.logits.floats();
  }
  float* rows = workspace_.rows.floats();
  EmbeddingParams gather = {.num_tokens = num_logits,
                            .token_ids = batch.logits_rows.data(),
                            .table = {.data = workspace_.residual.data(),
                                      .dtype = DType::kF32,
                                      .rows = batch.num_tokens(),
                                      .cols = config_.hidden_size},
                            .out = rows};
  if (pending_delta_ != nullptr) {
    gather.position_table = gather.table;
    gather.position_table.data = pending_delta_;
    gather.positions = batch.logits_rows.data();
  }
  backend_.Embed(gather);
  if (config_.final_norm) {
    float* normalized = rows + num_logits * config_.hidden_size;
    Normalize(weights_.final_norm, rows, nullptr, normalized, num_logits);
    rows = normalized;
  }
  if (weights_.project_out != nullptr) {
    backend_.Linear({.num_tokens = num_logits,
                     .x = rows,
                     .y = workspace_.projected.floats(),
                     .weight = weights_.project_out.get()});
    rows = workspace_.projected.floats();
  }
  backend_.Linear({.num_tokens = num_logits,
                   .x = rows,
                   .y = workspace_.logits.floats(),
                   .weight = weights_.lm_head.get()});
  return workspace_.logits.floats();
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& model_dir,
                                                 KernelBackend& backend,
                                                 const LoadProgressFn& progress) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(model_dir));
  QUIRE_ASSIGN_OR_RETURN(WeightFiles files, WeightFiles::Open(model_dir));
  QUIRE_ASSIGN_OR_RETURN(DecoderWeights weights, LoadWeights(config, files, backend, progress));
  return std::make_unique<DecoderModel>(std::move(config), std::move(weights), backend);
}

}  // namespace quire
