// Sums and maxima over a warp or a CTA, in an order that depends only on the CTA's size. Every
// thread gets the same bits.
//
// REQUIRES: all threads of the warp, or of the CTA, call a function together. A CTA has only whole
// warps. Maxima ignore NaN.
//
// Thread safety: any warp or CTA may call, with all its threads.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_WARP_H_
#define QUIRE_KERNELS_CUDA_DEVICE_WARP_H_

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

QUIRE_DEVICE float ShuffleXor(float value,
                              int lane_mask,
                              [[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
  return __shfl_xor_sync(kWholeWarp, value, lane_mask);
#else
  return __shfl_xor_sync(kWholeWarp, value, lane_mask, kWarpSize, at);
#endif
}

QUIRE_DEVICE void SyncCta([[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
  __syncthreads();
#else
  __syncthreads(at);
#endif
}

QUIRE_DEVICE float WarpSum(float value, SourceLine at = SourceLine::Here()) {
  QUIRE_UNROLL
  for (int lane_mask = kWarpSize / 2; lane_mask > 0; lane_mask /= 2) {
    value += ShuffleXor(value, lane_mask, at);
  }
  return value;
}

QUIRE_DEVICE float WarpMax(float value, SourceLine at = SourceLine::Here()) {
  QUIRE_UNROLL
  for (int lane_mask = kWarpSize / 2; lane_mask > 0; lane_mask /= 2) {
    value = fmaxf(value, ShuffleXor(value, lane_mask, at));
  }
  return value;
}

// Returns to thread i the value that lane 0 of warp i % 32 passed, or `absent` if the CTA has no
// such warp. scratch: 32 floats of shared memory, which the caller may reuse right after the call.
QUIRE_DEVICE float GatherWarps(float value,
                               float absent,
                               float* scratch,
                               SourceLine at = SourceLine::Here()) {
  const uint32_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const uint32_t num_warps = blockDim.x * blockDim.y * blockDim.z / kWarpSize;
  const uint32_t lane = thread % kWarpSize;
  if (lane == 0) {
    scratch[thread / kWarpSize] = value;
  }
  SyncCta(at);
  value = lane < num_warps ? scratch[lane] : absent;
  SyncCta(at);
  return value;
}

// scratch: as in GatherWarps.
QUIRE_DEVICE float CtaSum(float value, float* scratch, SourceLine at = SourceLine::Here()) {
  return WarpSum(GatherWarps(WarpSum(value, at), 0.0F, scratch, at), at);
}

// scratch: as in GatherWarps.
QUIRE_DEVICE float CtaMax(float value, float* scratch, SourceLine at = SourceLine::Here()) {
  return WarpMax(GatherWarps(WarpMax(value, at), -INFINITY, scratch, at), at);
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_WARP_H_
