// Decode for head_dim 256.
#include "kernels/cuda/paged_decode.cuh"

namespace quire::gpu {

template int RunDecode<256>(const DecodeParams& params, Stream stream);
template int CountDecodeCtas<256>(DType activations, DType cache_dtype, int32_t* num_ctas);

}  // namespace quire::gpu
