// LockedGpuApi wraps a library's functions in one lock: the emulated library takes one caller at a
// time, but ranks that are threads of one process call it concurrently.
//
// Thread safety: the table's functions: any thread.
#ifndef QUIRE_TESTS_SUPPORT_LOCKED_GPU_API_H_
#define QUIRE_TESTS_SUPPORT_LOCKED_GPU_API_H_

#include "kernels/cuda/gpu_api.h"

namespace quire {

// Supports one library per process, which must stay open. A function of the table that waits for
// another rank deadlocks.
const gpu::GpuApi& LockedGpuApi(const gpu::GpuApi& api);

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_LOCKED_GPU_API_H_
