// Instantiates prefill on warpgroup products for head_dim 64.
#include "kernels/cuda/paged_prefill_wgmma.cuh"

namespace quire::gpu {

template int RunWgmmaPrefill<64>(const PrefillParams& params, Stream stream);

}  // namespace quire::gpu
