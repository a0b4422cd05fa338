// Launches kernels with one CTA per row. A row is cut into chunks of 8 or 16 elements, and a thread
// takes at most chunks_per_thread of them. The CTA has as few warps as possible. So the row's width
// alone decides the number of threads and which elements each thread adds up. The kernel may start
// early, so it must wait as early_start.h says.
//
// Thread safety: one caller at a time for one stream.
#ifndef QUIRE_KERNELS_CUDA_DEVICE_ROW_LAUNCH_H_
#define QUIRE_KERNELS_CUDA_DEVICE_ROW_LAUNCH_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

inline constexpr int32_t kMaxRowThreads = 512;

// Returns the fewest chunks per thread for which kMaxRowThreads threads suffice. num_chunks: chunks
// of a row. REQUIRES: num_chunks >= 1.
constexpr int32_t NumChunksPerThread(int32_t num_chunks) {
  return (num_chunks + kMaxRowThreads - 1) / kMaxRowThreads;
}

// Launches the kernel with one CTA per row, and gives each CTA 32 floats of shared memory, for sums
// over the CTA. Returns 0 or the launch's error. REQUIRES: chunks_per_thread >=
// NumChunksPerThread(num_chunks); num_rows >= 1.
template <typename Args>
int LaunchRows(void (*kernel)(Args),
               int64_t num_rows,
               int32_t num_chunks,
               int32_t chunks_per_thread,
               void* stream,
               const Args& args) {
  const int32_t needed = (num_chunks + chunks_per_thread - 1) / chunks_per_thread;
  const int32_t threads = (needed + kWarpSize - 1) / kWarpSize * kWarpSize;
  return QUIRE_LAUNCH_EARLY(kernel,
                            dim3(static_cast<uint32_t>(num_rows)),
                            dim3(static_cast<uint32_t>(threads)),
                            kWarpSize * sizeof(float),
                            stream,
                            args);
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_DEVICE_ROW_LAUNCH_H_
