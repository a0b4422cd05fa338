// Prefill for head_dim 112.
#include "kernels/cuda/paged_prefill.cuh"

namespace quire::gpu {

template int RunPrefill<112>(const PrefillParams& params, Stream stream);

}  // namespace quire::gpu
