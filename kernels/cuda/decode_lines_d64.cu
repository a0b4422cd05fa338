// Instantiates decode by lines for head_dim 64.
#include "kernels/cuda/decode_lines.cuh"

namespace quire::gpu {

template int RunLines<64>(const LineParams& params, Stream stream);
template int CountLineCtas<64>(DType activations,
                               DType cache_dtype,
                               int32_t rows_per_line,
                               int32_t* num_ctas);

}  // namespace quire::gpu
