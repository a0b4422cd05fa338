// LockedGpuApi makes a table of a library's functions that run one at a time: the emulated library
// takes one caller at a time, and ranks that are threads of one process are several.
//
// Thread safety: the table's functions: any thread.
#ifndef QUIRE_TESTS_SUPPORT_LOCKED_GPU_API_H_
#define QUIRE_TESTS_SUPPORT_LOCKED_GPU_API_H_

#include "kernels/cuda/gpu_api.h"

namespace quire {

// Of one library in a process, which stays open. What waits for another rank in a function of the
// table waits for ever.
const gpu::GpuApi& LockedGpuApi(const gpu::GpuApi& api);

}  // namespace quire

#endif  // QUIRE_TESTS_SUPPORT_LOCKED_GPU_API_H_
