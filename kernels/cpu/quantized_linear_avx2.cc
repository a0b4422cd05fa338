#include "kernels/cpu/bytes_avx2.h"
#include "kernels/cpu/quantized_kernel.inl.h"

namespace quire {

const QuantizedKernels kQuantizedAvx2 = KernelsOf<BytesAvx2>();

}  // namespace quire
