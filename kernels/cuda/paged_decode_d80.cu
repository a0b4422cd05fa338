// Decode for head_dim 80.
#include "kernels/cuda/paged_decode.cuh"

namespace quire::gpu {

template int RunDecode<80>(const DecodeParams& params, Stream stream);
template int CountDecodeCtas<80>(DType activations, DType cache_dtype, int32_t* num_ctas);

}  // namespace quire::gpu
