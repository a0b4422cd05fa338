// SoftmaxOfRow computes the softmax of one row over one chunk; MergeRow merges chunks. Both are
// templates over a Simd struct S. A slot is a position of the chunk.
//
// Source: online softmax, Milakov and Gimelshein 2018.
#ifndef QUIRE_KERNELS_CPU_PAGED_ATTENTION_SOFTMAX_INL_H_
#define QUIRE_KERNELS_CPU_PAGED_ATTENTION_SOFTMAX_INL_H_

#include <cstdint>
#include <limits>

#include "kernels/cpu/paged_attention_tile.inl.h"

namespace quire {
namespace {

// Softmax state of one row, over its positions so far or over one chunk. sum == 0 means that there
// was no position yet. With at least one position, sum is not 0, because the position with the
// maximum has the weight 1 (or NaN).
struct SoftmaxStats {
  float max = 0.0F;
  float sum = 0.0F;
};

// Returns a mask of the lanes inside the range. Bit i stands for lane i of the vector at `slot`.
template <typename S>
uint32_t LanesInside(SlotRange range, int32_t slot) {
  const int32_t begin = range.begin > slot ? range.begin - slot : 0;
  const int32_t end = range.end < slot + S::kLanes ? range.end - slot : S::kLanes;
  return ((uint32_t{1} << end) - 1) & ~((uint32_t{1} << begin) - 1);
}

// Multiplies each slot of the range by factors[slot]. Slots outside the range, but in the same
// vectors as slots inside, become garbage.
template <typename S>
void MultiplySlots(float* row, SlotRange range, const float* factors) {
  for (int32_t slot = range.begin / S::kLanes * S::kLanes; slot < range.end; slot += S::kLanes) {
    S::Store(row + slot, S::Mul(S::Load(row + slot), S::Load(factors + slot)));
  }
}

// Applies ALiBi: scores become scale * score + slope * distance. The distance of slot 0 is `first`;
// the distance grows by 1 per slot. Slots outside the range, but in the same vectors as slots
// inside, become garbage.
template <typename S>
void BiasSlots(float* row, SlotRange range, float scale, float slope, int32_t first) {
  static constexpr float kLaneNumbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const auto scales = S::Broadcast(scale);
  const auto slopes = S::Broadcast(slope);
  const auto lanes = S::Load(kLaneNumbers);
  for (int32_t slot = range.begin / S::kLanes * S::kLanes; slot < range.end; slot += S::kLanes) {
    const auto distances = S::Add(S::Broadcast(static_cast<float>(first + slot)), lanes);
    const auto scores = S::Mul(S::Load(row + slot), scales);
    S::Store(row + slot, S::Fma(slopes, distances, scores));
  }
}

// Turns scores into weights exp(scale * score - max), where max is the greatest scale * score.
// Returns max and the sum of the weights. Slots outside the range, but in the same vectors as slots
// inside, get the weight 0. Does not touch slots of other vectors.
template <typename S>
SoftmaxStats SoftmaxOfRow(float* scores, SlotRange range, float scale) {
  if (range.empty()) {
    return {};
  }
  const int32_t first = range.begin / S::kLanes * S::kLanes;
  const auto outside = S::Broadcast(-std::numeric_limits<float>::infinity());
  const auto scales = S::Broadcast(scale);
  auto max = outside;
  for (int32_t slot = first; slot < range.end; slot += S::kLanes) {
    auto score = S::Mul(S::Load(scores + slot), scales);
    if (slot < range.begin || slot + S::kLanes > range.end) {
      score = S::Select(LanesInside<S>(range, slot), score, outside);
    }
    S::Store(scores + slot, score);
    max = S::Max(max, score);
  }
  SoftmaxStats stats;
  stats.max = S::ReduceMax(max);
  const auto row_max = S::Broadcast(stats.max);
  auto sum = S::Zero();
  for (int32_t slot = first; slot < range.end; slot += S::kLanes) {
    const auto weight = S::Exp(S::Sub(S::Load(scores + slot), row_max));
    S::Store(scores + slot, weight);
    sum = S::Add(sum, weight);
  }
  stats.sum = S::ReduceSum(sum);
  return stats;
}

// Adds the result of the next chunk to the running result of a row.
template <typename S>
void MergeRow(SoftmaxStats chunk_stats,
              const float* chunk_values,
              int32_t head_dim,
              SoftmaxStats* stats,
              float* values) {
  if (chunk_stats.sum == 0.0F) {
    return;
  }
  if (stats->sum == 0.0F) {
    *stats = chunk_stats;
    __builtin_memcpy(values, chunk_values, static_cast<size_t>(head_dim) * sizeof(float));
    return;
  }
  // The chunk or the running result, whichever has the greater maximum, gets the factor exp(0) = 1.
  const bool rises = chunk_stats.max > stats->max;
  const float max = rises ? chunk_stats.max : stats->max;
  const auto factor = S::Exp(S::Broadcast((rises ? stats->max : chunk_stats.max) - max));
  const auto one = S::Broadcast(1.0F);
  const auto old_factor = rises ? factor : one;
  const auto new_factor = rises ? one : factor;
  stats->max = max;
  const auto sum = S::Add(S::Mul(S::Broadcast(stats->sum), old_factor),
                          S::Mul(S::Broadcast(chunk_stats.sum), new_factor));
  S::StoreN(&stats->sum, sum, 1);
  for (int32_t d = 0; d < head_dim; d += S::kLanes) {
    const int32_t n = head_dim - d < S::kLanes ? head_dim - d : S::kLanes;
    const auto old_part = S::Mul(S::LoadN(values + d, n), old_factor);
    S::StoreN(values + d, S::Fma(S::LoadN(chunk_values + d, n), new_factor, old_part), n);
  }
}

template <typename S>
void FinishRow(SoftmaxStats stats, const float* values, int32_t head_dim, float* out) {
  const auto sum = S::Broadcast(stats.sum);
  for (int32_t d = 0; d < head_dim; d += S::kLanes) {
    const int32_t n = head_dim - d < S::kLanes ? head_dim - d : S::kLanes;
    S::StoreN(out + d, S::Div(S::LoadN(values + d, n), sum), n);
  }
}

}  // namespace
}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_PAGED_ATTENTION_SOFTMAX_INL_H_
