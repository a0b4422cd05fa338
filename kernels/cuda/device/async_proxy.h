// Products of a warpgroup (warpgroup.h) and bulk copies (bulk_copy.h) access shared memory through
// the async proxy. It sees what threads have written only after a fence.
//
// Source: PTX ISA, "Async proxy".
//
// Thread safety: any thread of a kernel may call.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_ASYNC_PROXY_H_
#define QUIRE_KERNELS_CUDA_DEVICE_ASYNC_PROXY_H_

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

// Makes writes to shared memory visible to the async proxy. A thread calls it in two places:
//   - After the thread's own stores, landed copies and initialized barriers, and before a barrier.
//     Products and bulk copies that threads start after the barrier see the writes.
//   - After a barrier. Products that this thread starts later see what other threads wrote before
//     the barrier.
QUIRE_DEVICE void FenceAsyncProxy() {
#ifdef __CUDACC__
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  emulator::FenceAsyncProxy();
#endif
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_ASYNC_PROXY_H_
