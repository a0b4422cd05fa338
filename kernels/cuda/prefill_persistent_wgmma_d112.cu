// Instantiates persistent prefill on warpgroup products for head_dim 112.
#include "kernels/cuda/prefill_persistent.cuh"

namespace quire::gpu {

template int RunPersistentPrefill<112>(const PrefillParams& params, Stream stream);

}  // namespace quire::gpu
