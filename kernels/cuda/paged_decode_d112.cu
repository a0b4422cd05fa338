// Decode for head_dim 112.
#include "kernels/cuda/paged_decode.cuh"

namespace quire::gpu {

template int RunDecode<112>(const DecodeParams& params, Stream stream);
template int CountDecodeCtas<112>(DType activations, DType cache_dtype, int32_t* num_ctas);

}  // namespace quire::gpu
