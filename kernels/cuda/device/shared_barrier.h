// SharedBarrier is a barrier object in shared memory (mbarrier): some threads arrive and go on,
// others wait.
//
// A barrier has phases 0, 1, 2, ...: a phase ends after `count` arrivals, and the next begins. A
// phase that expects a number of bytes also waits until bulk copies of that size have landed
// (bulk_copy.h). Wait names a phase by its parity. A thread must call Wait before the following
// phase ends, else the thread would wait for a later phase of the same parity. After the wait the
// thread sees all writes that other threads made before they arrived.
//
// Usage: one thread calls Init(4), then all threads call __syncthreads. Four warps fill a buffer;
// one lane of each warp calls Arrive after __syncwarp. Threads that use the buffer call Wait(0)
// before their first use, and Wait(1) before their second use.
//
// Thread safety: any thread of a kernel may call.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_SHARED_BARRIER_H_
#define QUIRE_KERNELS_CUDA_DEVICE_SHARED_BARRIER_H_

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

class SharedBarrier {
 public:
  // Must be called by one thread alone. All threads of the CTA must then call __syncthreads, to see
  // the initialized object.
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

  // Arrives, and makes the phase wait until bulk copies of `bytes` more bytes have landed. The
  // copies may start before or after the call, but before the phase ends. A phase waits for at most
  // 2^20 - 1 bytes. For sm_90 and later.
  QUIRE_DEVICE void ArriveAndExpect(int bytes,
                                    [[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(Address()), "r"(bytes)
                 : "memory");
#else
    emulator::ExpectBytes(&state_, static_cast<uint32_t>(bytes), at);
    emulator::ArriveSharedBarrier(&state_, at);
#endif
  }

  // Returns at once. The arrival happens when all copies that the thread has started so far
  // (async_copy.h) have landed. A thread that waits for this phase must call FenceAsyncProxy after
  // Wait, before it starts products (warpgroup.h) that read the copied bytes.
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

  // Waits until the phase of this parity, 0 or 1, has ended.
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

  // Returns the address by which bulk copies refer to the barrier.
  QUIRE_DEVICE void* state() { return &state_; }

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
