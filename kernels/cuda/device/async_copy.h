// cp.async: copies from global to shared memory, asynchronous to the thread that starts them.
//
// A thread waits only for its own copies. A barrier after the wait makes the copied bytes visible
// to other threads. A thread must wait for all its copies before it returns.
//
// Usage: call CopyAsync16 for each 16 bytes of a tile. CommitCopies puts these copies into one
// group. Do the same for the next tile. WaitCopies<1> then waits until all groups except the latest
// have landed. A barrier must follow.
//
// Thread safety: any thread of a kernel may call; each thread has its own groups of copies.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_ASYNC_COPY_H_
#define QUIRE_KERNELS_CUDA_DEVICE_ASYNC_COPY_H_

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

// Copies 16 bytes. If !valid, writes zeros and does not read `global`. REQUIRES: both addresses are
// 16-byte aligned.
QUIRE_DEVICE void CopyAsync16(void* shared,
                              const void* global,
                              bool valid,
                              [[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
                 "l"(global),
                 "r"(valid ? 16 : 0)
               : "memory");
#else
  emulator::CopyAsync16(shared, global, valid, at);
#endif
}

// Puts all copies that the thread has started since its last CommitCopies into one group.
QUIRE_DEVICE void CommitCopies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulator::CommitCopies();
#endif
}

// Waits until at most kMaxPending of the thread's groups of copies are in flight.
template <int kMaxPending>
QUIRE_DEVICE void WaitCopies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kMaxPending) : "memory");
#else
  emulator::WaitCopies(kMaxPending);
#endif
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_ASYNC_COPY_H_
