// PagedAttention, Kwon et al. 2023, section 4.1: softmax over the whole context at once, in double.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "common/base/check.h"
#include "kernels/reference/element.h"
#include "kernels/reference/reference_ops.h"

namespace quire::reference {
namespace {

// One query of one head, and the blocks and positions of its context.
struct Query {
  const float* q = nullptr;  // [head_dim]
  float* out = nullptr;      // [head_dim]
  const void* base = nullptr;
  const BlockId* block_table = nullptr;  // null: the blocks are consecutive, from base on
  int32_t kv_head = 0;
  double slope = 0.0;  // ALiBi's slope of the head; 0: none
  double sink = -std::numeric_limits<double>::infinity();
  int32_t first = 0;  // first position that the query attends to
  int32_t last = 0;   // last position that the query attends to: its own
};

BlockId BlockAt(const Query& query, int32_t index) {
  return query.block_table == nullptr ? index : query.block_table[index];
}

// Returns the scale of the position's key if `offset` is the layout's key_scale_offset, or of the
// position's value if `offset` is value_scale_offset. Returns `without` if the cache has no scales.
double ScaleOf(const PagedAttentionParams& p,
               const Query& query,
               int32_t position,
               int64_t offset,
               float without) {
  const KvCacheLayout& layout = p.cache.layout;
  if (!layout.has_scales()) {
    return without;
  }
  BlockId block = BlockAt(query, position / layout.block_size_tokens);
  const auto* scales = static_cast<const unsigned char*>(query.base) +
                       layout.KeyOffset(block, p.layer, query.kv_head) + offset;
  float scale = 0.0F;
  std::memcpy(
      &scale, scales + position % layout.block_size_tokens * int64_t{sizeof(float)}, sizeof(scale));
  return scale;
}

double Score(const PagedAttentionParams& p, const Query& query, int32_t position) {
  const KvCacheLayout& layout = p.cache.layout;
  BlockId block = BlockAt(query, position / layout.block_size_tokens);
  int64_t key = layout.KeyOffset(block, p.layer, query.kv_head) +
                position % layout.block_size_tokens * layout.key_slot_stride;
  double sum = 0.0;
  for (int32_t d = 0; d < layout.head_dim; ++d) {
    sum +=
        double{query.q[d]} * LoadElement(query.base, layout.dtype, key + d * layout.key_dim_stride);
  }
  double score = sum * ScaleOf(p, query, position, layout.key_scale_offset, p.k_scale) * p.scale;
  if (p.soft_cap > 0.0F) {
    score = p.soft_cap * std::tanh(score / p.soft_cap);
  }
  return score + query.slope * (position - query.last);
}

void AddWeightedValue(const PagedAttentionParams& p,
                      const Query& query,
                      int32_t position,
                      double weight,
                      std::vector<double>& out) {
  const KvCacheLayout& layout = p.cache.layout;
  BlockId block = BlockAt(query, position / layout.block_size_tokens);
  int64_t value = layout.ValueOffset(block, p.layer, query.kv_head) +
                  position % layout.block_size_tokens * layout.value_slot_stride;
  weight *= ScaleOf(p, query, position, layout.value_scale_offset, p.v_scale);
  for (size_t d = 0; d < out.size(); ++d) {
    out[d] += weight * LoadElement(query.base, layout.dtype, value + static_cast<int64_t>(d));
  }
}

void Attend(const PagedAttentionParams& p, const Query& query) {
  std::vector<double> scores;
  for (int32_t j = query.first; j <= query.last; ++j) {
    scores.push_back(Score(p, query, j));
  }
  double max_score = std::max(query.sink, *std::max_element(scores.begin(), scores.end()));

  double sum = std::exp(query.sink - max_score);
  std::vector<double> out(static_cast<size_t>(p.cache.layout.head_dim), 0.0);
  for (int32_t j = query.first; j <= query.last; ++j) {
    double weight = std::exp(scores[static_cast<size_t>(j - query.first)] - max_score);
    sum += weight;
    AddWeightedValue(p, query, j, weight, out);
  }
  for (size_t d = 0; d < out.size(); ++d) {
    query.out[d] = static_cast<float>(out[d] / sum);
  }
}

void FindBlocks(const PagedAttentionParams& p, int32_t sequence, Query* query) {
  if (p.first_places == nullptr) {
    query->base = p.cache.base;
    query->block_table = p.block_tables + int64_t{sequence} * p.max_blocks_per_seq;
  } else {
    query->base = static_cast<const std::byte*>(p.cache.windows) +
                  p.first_places[sequence] * p.cache.layout.block_bytes();
  }
}

}  // namespace

void PagedAttention(const PagedAttentionParams& p) {
  QUIRE_CHECK(p.cache.layout.row_order == KvRowOrder::kStrided);
  int64_t head_dim = p.cache.layout.head_dim;
  int32_t heads_per_kv_head = p.num_heads / p.cache.layout.num_kv_heads;
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    int32_t query_len = p.query_start[s + 1] - p.query_start[s];
    bool is_padding = p.seq_lens[s] == 0;
    for (int32_t i = 0; i < query_len && !is_padding; ++i) {
      int64_t token = p.query_start[s] + i;
      int32_t position = p.seq_lens[s] - query_len + i;
      for (int32_t h = 0; h < p.num_heads; ++h) {
        Query query;
        query.q = static_cast<const float*>(p.q) + token * p.q_row_stride + h * head_dim;
        query.out = static_cast<float*>(p.out) + (token * p.num_heads + h) * head_dim;
        FindBlocks(p, s, &query);
        query.kv_head = h / heads_per_kv_head;
        query.slope = p.alibi_slopes == nullptr ? 0.0 : p.alibi_slopes[h];
        if (p.sinks != nullptr) {
          query.sink = p.sinks[h];
        }
        query.first = p.sliding_window > 0 ? std::max(0, position - p.sliding_window + 1) : 0;
        query.last = position;
        Attend(p, query);
      }
    }
  }
}

}  // namespace quire::reference
