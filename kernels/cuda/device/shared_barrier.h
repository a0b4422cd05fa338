// SharedBarrier: a barrier object in shared memory (mbarrier), for threads that announce and others
// that wait, each at its own pace.
//
// It has phases, 0, 1, 2, ...: one ends when `count` arrivals have come, and the next begins. A
// waiter names the parity of the phase whose end it waits for, and must not be two phases behind.
// What a thread did before it arrived is seen by those that have waited for that phase.
//
// Usage: one thread calls Init(4), all call __syncthreads. Of each of four warps that fill a buffer
// one lane calls Arrive after __syncwarp; who wants to use the buffer calls Wait(0) first, and
// Wait(1) before its second use.
//
// Thread safety: device functions.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_SHARED_BARRIER_H_
#define QUIRE_KERNELS_CUDA_DEVICE_SHARED_BARRIER_H_

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

class SharedBarrier {
 public:
  // By one thread; a barrier of the CTA shows it to the others.
  QUIRE_DEVICE void Init(int count, [[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :
                 : "r"(Address()), "r"(count)
                 : "memory");
#else
    emulator::InitSharedBarrier(&state_, static_cast<uint32_t>(count), at);
#endif
  }

  QUIRE_DEVICE void Arrive([[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(Address()) : "memory");
#else
    emulator::ArriveSharedBarrier(&state_, at);
#endif
  }

  // As Arrive, when all copies that the thread has started (async_copy.h) have landed; does not
  // wait. Products may read them after a proxy fence of those that have waited for the phase.
  QUIRE_DEVICE void ArriveAfterCopies([[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                 :
                 : "r"(Address())
                 : "memory");
#else
    emulator::ArriveSharedBarrierAfterCopies(&state_, at);
#endif
  }

  // Until the phase of this parity, 0 or 1, has ended.
  QUIRE_DEVICE void Wait(int parity, [[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n"
        :
        : "r"(Address()), "r"(parity)
        : "memory");
#else
    emulator::WaitSharedBarrier(&state_, static_cast<uint32_t>(parity), at);
#endif
  }

 private:
#ifdef __CUDACC__
  QUIRE_DEVICE uint32_t Address() const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(&state_));
  }
#endif

  uint64_t state_;
};

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_SHARED_BARRIER_H_
