// Programmatic dependent launch, for sm_90 and later: a kernel launched by QUIRE_LAUNCH_EARLY may
// start while the previous operation on the stream still runs. On older devices the kernel starts
// after that operation, and these functions do nothing.
//
// Before its wait, such a kernel may read only memory that no unfinished operation writes, and may
// write only to shared memory. A thread that reads results of the previous operation, or writes to
// global memory, must wait first, or a barrier must order it after a thread that has waited. In
// each CTA at least one thread must wait.
//
// Usage: load what does not change, such as weights; WaitForEarlierOperation(); load the input;
// StartNext() when the next kernel may use the rest of the SM's resources; compute; store.
//
// Source: PTX ISA, "griddepcontrol".
//
// Thread safety: any thread of a kernel may call.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_EARLY_START_H_
#define QUIRE_KERNELS_CUDA_DEVICE_EARLY_START_H_

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

// Waits until the previous operation on the stream is complete and its writes are visible. Returns
// at once in a kernel that was not launched by QUIRE_LAUNCH_EARLY.
QUIRE_DEVICE void WaitForEarlierOperation([[maybe_unused]] SourceLine at = SourceLine::Here()) {
#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
#else
  emulator::WaitForEarlierOperation(at);
#endif
}

// Lets a next kernel that QUIRE_LAUNCH_EARLY launched start as soon as all CTAs of this kernel have
// called StartNext or have ended. This is only a hint: WaitForEarlierOperation in the next kernel
// still waits for the end of this kernel.
QUIRE_DEVICE void StartNext() {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_EARLY_START_H_
