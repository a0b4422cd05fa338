// Barriers of some of a CTA's threads, in whole warps, by number: 1 to 15 (0 is __syncthreads).
//
// A barrier is complete when num_threads threads have come to it, by either function, and is then
// new. What a thread wrote before it came is seen by those that Sync returns to.
//
// Usage, of 128 threads that fill a buffer and 256 that use it:
//   fill; ArriveNamedBarrier(kFull, 384);  |  SyncNamedBarrier(kFull, 384); use;
//
// Thread safety: device functions; all threads of a warp call together.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_NAMED_BARRIER_H_
#define QUIRE_KERNELS_CUDA_DEVICE_NAMED_BARRIER_H_

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

QUIRE_DEVICE void SyncNamedBarrier(int barrier,
                                   int num_threads,
                                   [[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
  asm volatile("bar.sync %0, %1;" : : "r"(barrier), "r"(num_threads) : "memory");
#else
  emulator::SyncNamedBarrier(
      static_cast<uint32_t>(barrier), static_cast<uint32_t>(num_threads), at);
#endif
}

// Does not wait.
QUIRE_DEVICE void ArriveNamedBarrier(int barrier,
                                     int num_threads,
                                     [[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
  asm volatile("bar.arrive %0, %1;" : : "r"(barrier), "r"(num_threads) : "memory");
#else
  emulator::ArriveNamedBarrier(
      static_cast<uint32_t>(barrier), static_cast<uint32_t>(num_threads), at);
#endif
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_NAMED_BARRIER_H_
