// Prefill for head_dim 256.
#include "kernels/cuda/paged_prefill.cuh"

namespace quire::gpu {

template int RunPrefill<256>(const PrefillParams& params, Stream stream);

}  // namespace quire::gpu
