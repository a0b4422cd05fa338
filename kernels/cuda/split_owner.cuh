// Finds the sequence to which a split of decode belongs.
#ifndef QUIRE_KERNELS_CUDA_SPLIT_OWNER_CUH_
#define QUIRE_KERNELS_CUDA_SPLIT_OWNER_CUH_

#include <cstdint>

#include "kernels/cuda/device/portability.h"

namespace quire::gpu {

// Returns the i in [0, num_decodes) with split_start[i] <= split < split_start[i + 1]. All lanes of
// a warp call together, and look at 32 entries of split_start at a time.
QUIRE_DEVICE int32_t FindSplitOwner(const int32_t* split_start,
                                    int32_t num_decodes,
                                    int32_t split) {
  int32_t lane = static_cast<int32_t>(threadIdx.x % kWarpSize);
  int32_t first = 0;  // invariant: the result is in [first, first + count)
  int32_t count = num_decodes;
  while (count > 1) {
    int32_t step = (count + kWarpSize - 1) / kWarpSize;
    int32_t offset = lane * step;
    bool starts_before = offset < count && split_start[first + offset] <= split;
    int32_t chosen = __popc(__ballot_sync(kWholeWarp, starts_before ? 1 : 0)) - 1;
    first += chosen * step;
    count -= chosen * step;
    count = count < step ? count : step;
  }
  return first;
}

}  // namespace quire::gpu

#endif  // QUIRE_KERNELS_CUDA_SPLIT_OWNER_CUH_
