#include "kernels/cpu/bytes_avx512.h"
#include "kernels/cpu/quantized_kernel.inl.h"

namespace quire {

const QuantizedKernels kQuantizedVnni = KernelsOf<BytesVnni>();

}  // namespace quire
