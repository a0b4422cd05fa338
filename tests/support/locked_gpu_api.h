// LockedGpuApi wraps a library's functions in one lock: the emulated library takes one caller at a
// time, but ranks that are threads of one process call it concurrently.
//
// Thread safety: all functions of the table are safe from any thread.
#ifndef QUIRE_TESTS_SUPPORT_LOCKED_GPU_API_H_
#define QUIRE_TESTS_SUPPORT_LOCKED_GPU_API_H_

#include "kernels/cuda/gpu_api.h"

namespace quire {

// Returns the wrapped table. Only one library per process can be wrapped, and it must stay open. A
// function of the table deadlocks if it waits for another rank.
const gpu::GpuApi& LockedGpuApi(const gpu::GpuApi& api);

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_LOCKED_GPU_API_H_
