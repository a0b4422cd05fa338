// Prefill for head_dim 96.
#include "kernels/cuda/paged_prefill.cuh"

namespace quire::gpu {

template int RunPrefill<96>(const PrefillParams& params, Stream stream);

}  // namespace quire::gpu
