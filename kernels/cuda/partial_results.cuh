// Merges, in order, the results of attention over the parts of a context: one part per warp of a
// CTA, or per split of a sequence.
#ifndef QUIRE_KERNELS_CUDA_PARTIAL_RESULTS_CUH_
#define QUIRE_KERNELS_CUDA_PARTIAL_RESULTS_CUH_

#include <cstdint>

#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/vector.h"
#include "kernels/cuda/online_softmax.cuh"

namespace quire::gpu {

// Part i has its weighted sums at out[i * out_stride], not yet divided by the sum of the weights,
// and its softmax state (max, sum) at state[i * state_stride]. Strides are in floats.
struct PartialResults {
  const float* out = nullptr;  // this thread's four dims of part 0
  int64_t out_stride = 0;
  const float* state = nullptr;
  int64_t state_stride = 0;
};

QUIRE_DEVICE SoftmaxState MergeResults(float (&out)[4], const PartialResults& parts, int count) {
  SoftmaxState state;
  QUIRE_UNROLL_BY(4)
  for (int i = 0; i < count; ++i) {
    float values[4];
    LoadVector<float, 4>(parts.out + i * parts.out_stride, values);
    SoftmaxState next;
    next.max = parts.state[i * parts.state_stride];
    next.sum = parts.state[i * parts.state_stride + 1];
    MergedState merged = MergeStates(state, next);
    QUIRE_UNROLL
    for (int k = 0; k < 4; ++k) {
      out[k] = out[k] * merged.first_factor + values[k] * merged.second_factor;
    }
    state = merged.state;
  }
  return state;
}

// Stores four dims of the attention's result: sums * v_scale / weight_sum, or zeros if no key has a
// weight. If weight_sum is NaN, the dims become NaN, as in prefill.
template <typename T>
QUIRE_DEVICE void StoreOutput(T* out, const float (&sums)[4], float weight_sum, float v_scale) {
  float factor = weight_sum > 0.0F ? v_scale / weight_sum : weight_sum;
  float values[4];
  QUIRE_UNROLL
  for (int k = 0; k < 4; ++k) {
    values[k] = sums[k] * factor;
  }
  StoreVector<T, 4>(out, values);
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_PARTIAL_RESULTS_CUH_
