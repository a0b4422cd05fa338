// Instantiates prefill on warpgroup products for head_dim 128.
#include "kernels/cuda/paged_prefill_wgmma.cuh"

namespace quire::gpu {

template int RunWgmmaPrefill<128>(const PrefillParams& params, Stream stream);

}  // namespace quire::gpu
