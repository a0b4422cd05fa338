// Instantiates persistent prefill on warpgroup products for head_dim 80.
#include "kernels/cuda/prefill_persistent.cuh"

namespace quire::gpu {

template int RunPersistentPrefill<80>(const PrefillParams& params, Stream stream);

}  // namespace quire::gpu
