// The running softmax of attention: a maximum and a sum, in base 2. Each tile of scores updates a
// state, and two states can be merged. If all scores were masked, the state has maximum -infinity
// and sum 0, and merges with any other state without a NaN. A NaN among the scores reaches the sum,
// so that the row becomes NaN.
//
// Source: Milakov and Gimelshein 2018, algorithm 3; merge as in FlashAttention-2, Dao 2023, 3.1.
#ifndef QUIRE_KERNELS_CUDA_ONLINE_SOFTMAX_CUH_
#define QUIRE_KERNELS_CUDA_ONLINE_SOFTMAX_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/device/math.h"
#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

// `sum` adds up the weights 2^(score - max) of all scores so far.
struct SoftmaxState {
  float max = -INFINITY;
  float sum = 0.0F;
};

// Returns the factor that converts weights relative to max into weights relative to larger_max.
// Returns 0 if max is -infinity, because -infinity - -infinity is NaN.
QUIRE_DEVICE float RescaleFactor(float max, float larger_max) {
  return max == -INFINITY ? 0.0F : Exp2(max - larger_max);
}

// Adds an attention sink: a score, in base 2, of a key without a value. Returns the factor by which
// the caller must multiply sums that were accumulated under the state.
QUIRE_DEVICE float AddSink(SoftmaxState& state, float sink) {
  const float max = fmaxf(state.max, sink);
  const float factor = RescaleFactor(state.max, max);
  state.sum = fmaf(state.sum, factor, RescaleFactor(sink, max));
  state.max = max;
  return factor;
}

// A soft cap, which turns a score into cap * tanh(score / cap). The host computes it and passes it
// as a kernel parameter, because parameters take no registers.
struct SoftCap {
  float cap = 0.0F;     // in base 2, like the scores. 0: no cap
  float factor = 0.0F;  // 2 log2(e) / cap

  static SoftCap Of(float cap) {
    const float cap_2 = cap * kLog2E;
    return cap > 0.0F ? SoftCap{cap_2, 2.0F * kLog2E / cap_2} : SoftCap{};
  }
  QUIRE_DEVICE bool is_set() const { return cap > 0.0F; }
  // Returns cap * (1 - 2 / (e^(2 score / cap) + 1)). The error is about cap * 2^-22 for each score.
  QUIRE_DEVICE float Capped(float score) const {
    return cap * fmaf(-2.0F, Reciprocal(Exp2(score * factor) + 1.0F), 1.0F);
  }
};

// Adds the scores of one row to the row's state and turns the scores into weights. scores: C
// fragments of 16 rows x (8 * kTiles) keys. The row is lane / 4 if `half` is 0, and lane / 4 + 8 if
// it is 1. The four lanes of a row call together. state.max is the maximum of the whole row, but
// state.sum is the sum of this lane's weights alone (see RowSum). Returns the factor by which the
// caller must multiply sums that were accumulated with earlier weights.
template <int kTiles>
QUIRE_DEVICE float UpdateSoftmax(SoftmaxState& state, float (&scores)[kTiles][4], int half) {
  float tile_max = -INFINITY;
  QUIRE_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    tile_max = fmaxf(tile_max, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
  }
  tile_max = fmaxf(tile_max, __shfl_xor_sync(kWholeWarp, tile_max, 1));
  tile_max = fmaxf(tile_max, __shfl_xor_sync(kWholeWarp, tile_max, 2));

  float max = fmaxf(state.max, tile_max);
  float factor = RescaleFactor(state.max, max);
  float shift = max == -INFINITY ? 0.0F : max;
  float sum = 0.0F;
  QUIRE_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    QUIRE_UNROLL
    for (int i = 0; i < 2; ++i) {
      float weight = Exp2(scores[n][2 * half + i] - shift);
      scores[n][2 * half + i] = weight;
      sum += weight;
    }
  }
  state.max = max;
  state.sum = state.sum * factor + sum;
  return factor;
}

// Adds up the shares of the four lanes of a row. All four lanes get the same bits.
QUIRE_DEVICE float RowSum(float share) {
  share += __shfl_xor_sync(kWholeWarp, share, 1);
  return share + __shfl_xor_sync(kWholeWarp, share, 2);
}

// The merged state of two states. The caller must multiply sums accumulated under the first state
// by first_factor, and sums accumulated under the second state by second_factor.
struct MergedState {
  SoftmaxState state;
  float first_factor = 0.0F;
  float second_factor = 0.0F;
};

QUIRE_DEVICE MergedState MergeStates(SoftmaxState first, SoftmaxState second) {
  MergedState merged;
  merged.state.max = fmaxf(first.max, second.max);
  merged.first_factor = RescaleFactor(first.max, merged.state.max);
  merged.second_factor = RescaleFactor(second.max, merged.state.max);
  merged.state.sum = first.sum * merged.first_factor + second.sum * merged.second_factor;
  return merged;
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_ONLINE_SOFTMAX_CUH_
