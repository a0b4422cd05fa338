// Instantiates persistent prefill on warpgroup products for head_dim 64.
#include "kernels/cuda/prefill_persistent.cuh"

namespace quire::gpu {

template int RunPersistentPrefill<64>(const PrefillParams& params, Stream stream);

}  // namespace quire::gpu
