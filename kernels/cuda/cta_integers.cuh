// Sums, searches and sorts of 64-bit integers by all threads of a CTA. Integer sums are the same in
// any order, so results depend neither on the CTA's size nor on how threads interleave.
//
// REQUIRES: the CTA is one-dimensional and has only whole warps. All its threads call a function
// together, after a barrier that follows the last write to the function's inputs. Every function
// ends with a barrier, except WarpInclusiveSum and a SortDescending of one value.
#ifndef QUIRE_KERNELS_CUDA_CTA_INTEGERS_CUH_
#define QUIRE_KERNELS_CUDA_CTA_INTEGERS_CUH_

#include <cstdint>

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

// Shared memory for the functions below.
struct CtaScratch {
  uint64_t warp_values[kWarpSize];
  uint64_t found_before;
  int32_t found_index;
};

// Returns the combination of the values of all threads. Every thread gets the same result. combine:
// associative and commutative, with identity 0.
template <typename Combine>
QUIRE_DEVICE uint64_t CtaReduce(uint64_t value, CtaScratch* scratch, Combine combine) {
  const uint32_t lane = threadIdx.x % kWarpSize;
  for (int lane_mask = kWarpSize / 2; lane_mask > 0; lane_mask /= 2) {
    value = combine(value, __shfl_xor_sync(kWholeWarp, value, lane_mask));
  }
  if (lane == 0) {
    scratch->warp_values[threadIdx.x / kWarpSize] = value;
  }
  __syncthreads();
  value = lane < blockDim.x / kWarpSize ? scratch->warp_values[lane] : 0;
  for (int lane_mask = kWarpSize / 2; lane_mask > 0; lane_mask /= 2) {
    value = combine(value, __shfl_xor_sync(kWholeWarp, value, lane_mask));
  }
  __syncthreads();
  return value;
}

QUIRE_DEVICE uint64_t CtaSumOf(uint64_t value, CtaScratch* scratch) {
  return CtaReduce(value, scratch, [](uint64_t a, uint64_t b) { return a + b; });
}

QUIRE_DEVICE uint64_t CtaMaxOf(uint64_t value, CtaScratch* scratch) {
  return CtaReduce(value, scratch, [](uint64_t a, uint64_t b) { return a < b ? b : a; });
}

// Returns the sum of the values of this lane and all lower lanes.
QUIRE_DEVICE uint64_t WarpInclusiveSum(uint64_t value) {
  const uint32_t lane = threadIdx.x % kWarpSize;
  for (uint32_t distance = 1; distance < kWarpSize; distance *= 2) {
    const uint64_t before = __shfl_up_sync(kWholeWarp, value, distance);
    value += lane >= distance ? before : 0;
  }
  return value;
}

// Returns the sum of the values of all threads with a lower threadIdx.x.
QUIRE_DEVICE uint64_t CtaExclusiveSum(uint64_t value, CtaScratch* scratch) {
  const uint32_t lane = threadIdx.x % kWarpSize;
  const uint32_t warp = threadIdx.x / kWarpSize;
  const uint64_t in_warp = WarpInclusiveSum(value);
  if (lane == kWarpSize - 1) {
    scratch->warp_values[warp] = in_warp;
  }
  __syncthreads();
  const uint64_t warps =
      WarpInclusiveSum(lane < blockDim.x / kWarpSize ? scratch->warp_values[lane] : 0);
  const uint64_t before = __shfl_sync(kWholeWarp, warps, static_cast<int>(warp) - 1);
  __syncthreads();
  return (warp == 0 ? 0 : before) + in_warp - value;
}

struct Found {
  int32_t index;    // equals count if the limit is not reached
  uint64_t before;  // sum of the values before index; undefined if the limit is not reached
};

// Returns the first i in [0, count) at which the running sum of value_of(0), ..., value_of(i)
// reaches limit. REQUIRES: limit > 0.
template <typename ValueOf>
QUIRE_DEVICE Found
FindReached(int32_t count, uint64_t limit, CtaScratch* scratch, ValueOf value_of) {
  const auto num_threads = static_cast<int32_t>(blockDim.x);
  const int32_t per_thread = (count + num_threads - 1) / num_threads;
  const int32_t begin = static_cast<int32_t>(threadIdx.x) * per_thread;
  const int32_t end = begin + per_thread < count ? begin + per_thread : count;
  uint64_t sum = 0;
  for (int32_t i = begin; i < end; ++i) {
    sum += value_of(i);
  }
  if (threadIdx.x == 0) {
    scratch->found_index = count;
  }
  uint64_t before = CtaExclusiveSum(sum, scratch);
  if (before < limit && limit <= before + sum) {
    int32_t i = begin;
    for (uint64_t value = value_of(i); before + value < limit; value = value_of(i)) {
      before += value;
      ++i;
    }
    scratch->found_index = i;
    scratch->found_before = before;
  }
  __syncthreads();
  const Found found = {scratch->found_index, scratch->found_before};
  __syncthreads();
  return found;
}

// Bitonic sort, greatest first. REQUIRES: count is a power of two.
QUIRE_DEVICE void SortDescending(uint64_t* values, int32_t count) {
  for (int32_t size = 2; size <= count; size *= 2) {
    for (int32_t distance = size / 2; distance > 0; distance /= 2) {
      for (auto i = static_cast<int32_t>(threadIdx.x); i < count / 2;
           i += static_cast<int32_t>(blockDim.x)) {
        const int32_t low = 2 * i - (i & (distance - 1));  // low & distance is 0
        const int32_t high = low + distance;
        const uint64_t a = values[low];
        const uint64_t b = values[high];
        const bool descending = (low & size) == 0;
        if ((a < b) == descending) {
          values[low] = b;
          values[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_CTA_INTEGERS_CUH_
