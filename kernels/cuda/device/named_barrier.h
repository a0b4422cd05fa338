// Barriers for a subset of a CTA's warps, numbered 1 to 15 (0 is __syncthreads).
//
// A barrier completes when num_threads threads have called SyncNamedBarrier or ArriveNamedBarrier,
// and then starts anew. A thread that returns from SyncNamedBarrier sees all writes that other
// threads made before their calls.
//
// Usage if 128 threads fill a buffer and 256 other threads use the buffer:
//   fill; ArriveNamedBarrier(kFull, 384);  |  SyncNamedBarrier(kFull, 384); use;
//
// Thread safety: all threads of a warp must call together.
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

// Counts the thread as arrived, and does not wait.
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
