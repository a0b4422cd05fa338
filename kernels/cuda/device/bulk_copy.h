// cp.async.bulk: one thread copies a range of bytes from global to shared memory, for sm_90 and
// later. The copy reports its bytes to a SharedBarrier when they have landed.
//
// Usage: one thread initializes the barrier with a count of 1 and calls FenceAsyncProxy, because
// bulk copies access the barrier through the async proxy. Then all threads call __syncthreads. For
// each buffer, one thread calls ArriveAndExpect with the bytes of all copies of the phase, and
// starts the copies. Threads that read the buffer call Wait. Before the buffer is reused, the
// readers arrive at another barrier, which the copying thread waits for. A thread that has written
// to the buffer calls FenceAsyncProxy before it arrives. All copies must have landed before the CTA
// ends.
//
// Source: PTX ISA, "cp.async.bulk" and "Async proxy".
//
// Thread safety: any thread of a kernel may call.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_BULK_COPY_H_
#define QUIRE_KERNELS_CUDA_DEVICE_BULK_COPY_H_

#include "kernels/cuda/device/async_proxy.h"  // for users
#include "kernels/cuda/device/portability.h"
#include "kernels/cuda/device/shared_barrier.h"

namespace quire::gpu {

// REQUIRES: the addresses and `bytes` are multiples of 16, and bytes > 0.
QUIRE_DEVICE void CopyBulk(void* shared,
                           const void* global,
                           int bytes,
                           SharedBarrier& barrier,
                           [[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
        "l"(global),
        "r"(bytes),
        "r"(static_cast<uint32_t>(__cvta_generic_to_shared(barrier.state())))
      : "memory");
#else
  emulator::CopyBulk(shared, global, static_cast<uint32_t>(bytes), barrier.state(), at);
#endif
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_BULK_COPY_H_
