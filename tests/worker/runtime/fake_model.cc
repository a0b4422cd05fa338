#include "tests/worker/runtime/fake_model.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"

namespace quire {
namespace {

// The key in which a slot keeps its token. An unwritten slot holds 0, which is no token.
int64_t KeyOffset(const KvCacheLayout& layout, int64_t block, int64_t slot) {
  return layout.KeyOffset(static_cast<BlockId>(block), 0, 0) + slot * layout.key_slot_stride;
}

float& KeyAt(const KvCacheView& cache, int64_t block, int64_t slot) {
  QUIRE_CHECK(block > kNullBlockId && block < cache.num_blocks);
  return static_cast<float*>(cache.base)[KeyOffset(cache.layout, block, slot)];
}

// The key of a slot in block `index` of the window that begins at first_place.
float ShownKeyAt(const KvCacheView& cache, int64_t first_place, int64_t index, int64_t slot) {
  return static_cast<const float*>(
      cache.windows)[KeyOffset(cache.layout, first_place + index, slot)];
}

// The tokens of sequence `row` up to position `last`, inclusive, as the cache has them.
std::vector<TokenId> ReadBack(const Batch& batch,
                              const KvCacheView& cache,
                              size_t row,
                              int32_t last) {
  int32_t block_size = cache.layout.block_size_tokens;
  std::vector<TokenId> token_ids;
  for (int32_t position = 0; position <= last; ++position) {
    const int32_t column = position / block_size;
    const int32_t slot = position % block_size;
    float key = 0.0F;
    if (batch.first_places.empty()) {
      key = KeyAt(cache,
                  batch.block_tables[row * static_cast<size_t>(batch.max_blocks_per_seq) +
                                     static_cast<size_t>(column)],
                  slot);
    } else {
      key = ShownKeyAt(cache, batch.first_places[row], column, slot);
    }
    token_ids.push_back(static_cast<TokenId>(key) - 1);
  }
  return token_ids;
}

}  // namespace

FakeModel::FakeModel() {
  config_.architecture = "FakeForCausalLM";
  config_.vocab_size = kVocabSize;
  config_.num_layers = 1;
  config_.num_heads = 1;
  config_.num_kv_heads = 1;
  config_.head_dim = 2;
  config_.max_position_embeddings = kMaxPositions;
  config_.dtype = DType::kF32;
  share_.kv_heads.count = 1;
}

TokenId FakeModel::NextToken(std::span<const TokenId> token_ids) {
  uint64_t hash = 0x9E3779B97F4A7C15U;
  for (TokenId token : token_ids) {
    hash = (hash ^ static_cast<uint64_t>(token + 1)) * 0xBF58476D1CE4E5B9U;
    hash ^= hash >> 29;
  }
  return static_cast<TokenId>(hash % kVocabSize);
}

void FakeModel::Begin(const Batch& batch, const KvCacheView& cache) {
  ++num_begins_;
  QUIRE_CHECK(cache.base != nullptr);
  begun_ = batch;
}

float* FakeModel::Run(const Batch& batch, const KvCacheView& cache) {
  ++num_runs_;
  QUIRE_CHECK(batch == begun_);
  if (on_run_) {
    on_run_(batch);
  }
  for (size_t i = 0; i < batch.token_ids.size(); ++i) {
    const int64_t slot = batch.slot_mapping[i];
    const int32_t block_size = cache.layout.block_size_tokens;
    KeyAt(cache, slot / block_size, slot % block_size) = static_cast<float>(batch.token_ids[i] + 1);
  }
  batch_ = batch;
  cache_ = cache;
  logits_.assign(batch.logits_rows.size() * kVocabSize, 0.0F);
  for (size_t i = 0; i < batch.logits_rows.size(); ++i) {
    WriteLogits(batch.logits_rows[i], i);
  }
  if (is_poisoned_) {
    std::fill(logits_.begin(), logits_.end(), std::numeric_limits<float>::quiet_NaN());
    is_poisoned_ = false;
  }
  return logits_.data();
}

float* FakeModel::LogitsOf(int32_t first_row, int32_t num_rows) {
  rows_asked_.push_back(num_rows);
  logits_.assign(static_cast<size_t>(num_rows) * kVocabSize, 0.0F);
  for (int32_t i = 0; i < num_rows; ++i) {
    WriteLogits(first_row + i, static_cast<size_t>(i));
  }
  if (are_scores_poisoned_) {
    std::fill(logits_.begin(), logits_.end(), std::numeric_limits<float>::quiet_NaN());
  }
  return logits_.data();
}

void FakeModel::WriteLogits(int32_t row, size_t index) {
  const auto next = std::upper_bound(batch_.query_start.begin(), batch_.query_start.end(), row);
  const auto sequence = static_cast<size_t>(next - batch_.query_start.begin() - 1);
  const int32_t position = batch_.positions[static_cast<size_t>(row)];
  const TokenId token = NextToken(ReadBack(batch_, cache_, sequence, position));
  logits_[index * kVocabSize + static_cast<size_t>(token)] = 10.0F;
}

}  // namespace quire
