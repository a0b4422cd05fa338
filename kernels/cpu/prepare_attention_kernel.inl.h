// The kernel of PrepareAttention as a template over a Simd struct S. See prepare_attention.h. Only
// prepare_attention_<isa>.cc include it.
#ifndef QUIRE_KERNELS_CPU_PREPARE_ATTENTION_KERNEL_INL_H_
#define QUIRE_KERNELS_CPU_PREPARE_ATTENTION_KERNEL_INL_H_

#include <cmath>
#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/cpu/quantize_vector.inl.h"
#include "kernels/cpu/storage_types.h"
#include "kernels/cpu/thread_team.h"

namespace quire {
namespace {

// Multiplies each number first by 1 / sqrt(mean square + eps), then by its weight, as Hugging Face
// does.
template <typename S>
void NormalizeHead(float* head, const float* weight, int32_t head_dim, float eps) {
  typename S::Vec squares = S::Zero();
  ForEachPiece<S>(head_dim, [&](int32_t d, int n) {
    const auto x = S::LoadN(head + d, n);
    squares = S::Fma(x, x, squares);
  });
  const float mean = S::ReduceSum(squares) / static_cast<float>(head_dim);
  const auto inverse = S::Broadcast(1.0F / std::sqrt(mean + eps));
  ForEachPiece<S>(head_dim, [&](int32_t d, int n) {
    const auto scaled = S::Mul(S::LoadN(head + d, n), inverse);
    S::StoreN(head + d, S::Mul(scaled, S::LoadN(weight + d, n)), n);
  });
}

// Rounds each product before it is added (no Fma), as Hugging Face does.
template <typename S>
void RotateHead(float* head, const float* cos, const float* sin, int32_t head_dim) {
  const int32_t half = head_dim / 2;
  ForEachPiece<S>(half, [&](int32_t d, int n) {
    const auto low = S::LoadN(head + d, n);
    const auto high = S::LoadN(head + half + d, n);
    const auto c = S::LoadN(cos + d, n);
    const auto s = S::LoadN(sin + d, n);
    S::StoreN(head + d, S::Sub(S::Mul(low, c), S::Mul(high, s)), n);
    S::StoreN(head + half + d, S::Add(S::Mul(high, c), S::Mul(low, s)), n);
  });
}

template <typename S>
void PrepareHead(const PrepareAttentionParams& p, int64_t token, float* head, const float* norm) {
  const int32_t head_dim = p.cache.layout.head_dim;
  if (norm != nullptr) {
    NormalizeHead<S>(head, norm, head_dim, p.norm_eps);
  }
  if (p.rope_cos != nullptr) {
    const int64_t row = int64_t{p.positions[token]} * (head_dim / 2);
    RotateHead<S>(head, p.rope_cos + row, p.rope_sin + row, head_dim);
  }
}

// Narrows the vector to T. If T has scales, writes the vector's scale to `scale`.
template <typename S, typename T>
void NarrowVector(const float* from, int32_t size, T* to, float* scale) {
  if constexpr (kHasScales<T>) {
    *scale = QuantizeVector<S>(from, size, to);
  } else {
    ForEachPiece<S>(size, [&](int32_t d, int n) { S::StoreN(to + d, S::LoadN(from + d, n), n); });
  }
}

template <typename S, typename T>
void WriteToCache(const PrepareAttentionParams& p,
                  int64_t token,
                  int32_t kv_head,
                  const float* k,
                  const float* v,
                  T* narrow_key) {
  const KvCacheLayout& layout = p.cache.layout;
  const auto block = static_cast<BlockId>(p.slot_mapping[token] / layout.block_size_tokens);
  const int64_t slot = p.slot_mapping[token] % layout.block_size_tokens;
  T* head = static_cast<T*>(p.cache.base) + layout.KeyOffset(block, p.layer, kv_head);
  T* key = head + slot * layout.key_slot_stride;
  T* value = head + layout.value_offset + slot * layout.value_slot_stride;
  float* key_scale = reinterpret_cast<float*>(head + layout.key_scale_offset) + slot;
  float* value_scale = reinterpret_cast<float*>(head + layout.value_scale_offset) + slot;
  NarrowVector<S>(k, layout.head_dim, narrow_key, key_scale);
  NarrowVector<S>(v, layout.head_dim, value, value_scale);
  for (int32_t d = 0; d < layout.head_dim; ++d) {
    key[d * layout.key_dim_stride] = narrow_key[d];
  }
}

template <typename S, typename T>
void PrepareToken(const PrepareAttentionParams& p, int64_t token, T* narrow_key) {
  const int64_t head_dim = p.cache.layout.head_dim;
  const int32_t num_kv_heads = p.cache.layout.num_kv_heads;
  float* q =
      static_cast<float*>(p.qkv) + token * (p.num_heads + int64_t{2} * num_kv_heads) * head_dim;
  float* k = q + p.num_heads * head_dim;
  float* v = k + num_kv_heads * head_dim;
  for (int32_t h = 0; h < p.num_heads; ++h) {
    PrepareHead<S>(p, token, q + h * head_dim, p.q_norm);
  }
  for (int32_t h = 0; h < num_kv_heads; ++h) {
    PrepareHead<S>(p, token, k + h * head_dim, p.k_norm);
    WriteToCache<S, T>(p, token, h, k + h * head_dim, v + h * head_dim, narrow_key);
  }
}

template <typename S, typename T>
void PrepareTokens(const PrepareAttentionParams& p, ThreadTeam& team) {
  // Adjacent tokens write keys to the same cache lines (keys are dim-major), so one thread takes
  // several adjacent tokens. A task has enough tokens to outweigh the cost of starting it.
  constexpr int64_t kMinTaskElements = 4096;
  const int64_t row =
      (p.num_heads + int64_t{2} * p.cache.layout.num_kv_heads) * p.cache.layout.head_dim;
  const int64_t enough = (kMinTaskElements + row - 1) / row;
  const int64_t even = p.num_tokens / (int64_t{8} * team.num_threads());
  const int64_t per_task = enough > even ? enough : even;
  const int64_t num_tasks = (p.num_tokens + per_task - 1) / per_task;
  team.ParallelFor(num_tasks, [&](int64_t task, int thread) {
    const auto bytes = static_cast<size_t>(p.cache.layout.head_dim) * sizeof(T);
    T* narrow_key = static_cast<T*>(team.Scratch(thread, bytes));
    const int64_t first = task * per_task;
    const int64_t end = first + per_task < p.num_tokens ? first + per_task : p.num_tokens;
    for (int64_t token = first; token < end; ++token) {
      PrepareToken<S, T>(p, token, narrow_key);
    }
  });
}

template <typename S>
void PrepareAttentionKernel(const PrepareAttentionParams& p, ThreadTeam& team) {
  switch (p.cache.layout.dtype) {
    case DType::kF32:
      return PrepareTokens<S, float>(p, team);
    case DType::kF16:
      return PrepareTokens<S, Float16>(p, team);
    case DType::kBF16:
      return PrepareTokens<S, BFloat16>(p, team);
    case DType::kF8E4M3:
      return PrepareTokens<S, Float8E4M3>(p, team);
    case DType::kInt8:
      return PrepareTokens<S, Int8>(p, team);
  }
}

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PREPARE_ATTENTION_KERNEL_INL_H_
