// Decode for head_dim 96.
#include "kernels/cuda/paged_decode.cuh"

namespace quire::gpu {

template int RunDecode<96>(const DecodeParams& params, Stream stream);
template int CountDecodeCtas<96>(DType activations, DType cache_dtype, int32_t* num_ctas);

}  // namespace quire::gpu
