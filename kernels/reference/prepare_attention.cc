// Rotary embedding: Su et al. 2021, eq. 34, in the half-split layout of Hugging Face.
#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "kernels/reference/element.h"
#include "kernels/reference/reference_ops.h"

namespace quire::reference {
namespace {

void NormalizeHead(float* head, const float* weight, int32_t head_dim, float eps) {
  double sum_of_squares = 0.0;
  for (int32_t d = 0; d < head_dim; ++d) {
    sum_of_squares += double{head[d]} * head[d];
  }
  double inverse = 1.0 / std::sqrt(sum_of_squares / head_dim + eps);
  for (int32_t d = 0; d < head_dim; ++d) {
    head[d] = static_cast<float>(head[d] * inverse * weight[d]);
  }
}

void RotateHead(float* head, const float* cos, const float* sin, int32_t head_dim) {
  int32_t half = head_dim / 2;
  for (int32_t d = 0; d < half; ++d) {
    double low = head[d];
    double high = head[d + half];
    head[d] = static_cast<float>(low * cos[d] - high * sin[d]);
    head[d + half] = static_cast<float>(high * cos[d] + low * sin[d]);
  }
}

void PrepareHead(const PrepareAttentionParams& p, int32_t token, float* head, const float* norm) {
  int32_t head_dim = p.cache.layout.head_dim;
  if (norm != nullptr) {
    NormalizeHead(head, norm, head_dim, p.norm_eps);
  }
  if (p.rope_cos != nullptr) {
    int64_t row = int64_t{p.positions[token]} * (head_dim / 2);
    RotateHead(head, p.rope_cos + row, p.rope_sin + row, head_dim);
  }
}

// Stores the scale of a slot. `head` is the distance from the cache's base to the keys of the KV
// head. `offset` is the distance from these keys to the head's scales, one per slot. Both are in
// bytes.
void StoreScale(const KvCacheView& cache, int64_t head, int64_t offset, int64_t slot, float scale) {
  auto* at = static_cast<unsigned char*>(cache.base) + head + offset;
  std::memcpy(at + slot * int64_t{sizeof(float)}, &scale, sizeof(scale));
}

void WriteToCache(const PrepareAttentionParams& p,
                  int32_t token,
                  int32_t kv_head,
                  const float* k,
                  const float* v) {
  const KvCacheLayout& layout = p.cache.layout;
  auto block = static_cast<BlockId>(p.slot_mapping[token] / layout.block_size_tokens);
  int64_t offset = p.slot_mapping[token] % layout.block_size_tokens;
  int64_t head = layout.KeyOffset(block, p.layer, kv_head);
  int64_t key = head + offset * layout.key_slot_stride;
  int64_t value = head + layout.value_offset + offset * layout.value_slot_stride;
  if (layout.has_scales()) {
    float key_scale = StoreScaledVector(
        p.cache.base, layout.dtype, key, layout.key_dim_stride, k, layout.head_dim);
    float value_scale = StoreScaledVector(p.cache.base, layout.dtype, value, 1, v, layout.head_dim);
    StoreScale(p.cache, head, layout.key_scale_offset, offset, key_scale);
    StoreScale(p.cache, head, layout.value_scale_offset, offset, value_scale);
    return;
  }
  for (int32_t d = 0; d < layout.head_dim; ++d) {
    StoreElement(p.cache.base, layout.dtype, key + d * layout.key_dim_stride, k[d] / p.k_scale);
    StoreElement(p.cache.base, layout.dtype, value + d, v[d] / p.v_scale);
  }
}

}  // namespace

void PrepareAttention(const PrepareAttentionParams& p) {
  QUIRE_CHECK(p.cache.layout.row_order == KvRowOrder::kStrided);
  int64_t head_dim = p.cache.layout.head_dim;
  int32_t num_kv_heads = p.cache.layout.num_kv_heads;
  int64_t row_width = (p.num_heads + int64_t{2} * num_kv_heads) * head_dim;
  for (int32_t t = 0; t < p.num_tokens; ++t) {
    if (p.slot_mapping[t] < 0) {
      continue;  // padding
    }
    float* q = static_cast<float*>(p.qkv) + t * row_width;
    float* k = q + p.num_heads * head_dim;
    float* v = k + num_kv_heads * head_dim;
    for (int32_t h = 0; h < p.num_heads; ++h) {
      PrepareHead(p, t, q + h * head_dim, p.q_norm);
    }
    for (int32_t h = 0; h < num_kv_heads; ++h) {
      PrepareHead(p, t, k + h * head_dim, p.k_norm);
      WriteToCache(p, t, h, k + h * head_dim, v + h * head_dim);
    }
  }
}

}  // namespace quire::reference
