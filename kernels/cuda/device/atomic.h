// Counters in global memory that order the accesses of CTAs.
//
// Usage: CTAs write partial results. Then each CTA calls __syncthreads, and one of its threads adds
// 1 to a counter. If that thread gets the number of CTAs minus 1, its CTA is the last. After
// another __syncthreads the last CTA may read all partial results.
//
// Thread safety: any thread of a kernel may call.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_ATOMIC_H_
#define QUIRE_KERNELS_CUDA_DEVICE_ATOMIC_H_

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

// Adds to the counter and returns the counter's earlier value. If thread A adds before thread B,
// then B sees all writes that A made before its call. B also sees the writes of other threads that
// A had seen through a barrier.
QUIRE_DEVICE int32_t AddAcquireRelease(int32_t* counter, int32_t value) {
#ifdef __CUDACC__
  int32_t before = 0;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(value)
               : "memory");
  return before;
#else
  emulator::NoteAcquireRelease(counter, sizeof(*counter));
  return __atomic_fetch_add(counter, value, __ATOMIC_ACQ_REL);
#endif
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_ATOMIC_H_
