// Prefill for head_dim 80.
#include "kernels/cuda/paged_prefill.cuh"

namespace quire::gpu {

template int RunPrefill<80>(const PrefillParams& params, Stream stream);

}  // namespace quire::gpu
