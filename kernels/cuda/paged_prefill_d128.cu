// Prefill for head_dim 128.
#include "kernels/cuda/paged_prefill.cuh"

namespace quire::gpu {

template int RunPrefill<128>(const PrefillParams& params, Stream stream);

}  // namespace quire::gpu
