// Prefill for head_dim 64.
#include "kernels/cuda/paged_prefill.cuh"

namespace quire::gpu {

template int RunPrefill<64>(const PrefillParams& params, Stream stream);

}  // namespace quire::gpu
