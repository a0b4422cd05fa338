#include "kernels/cpu/bytes_avx512.h"
#include "kernels/cpu/quantized_kernel.inl.h"

namespace quire {

const QuantizedKernels kQuantizedAvx512 = KernelsOf<BytesAvx512>();

}  // namespace quire
