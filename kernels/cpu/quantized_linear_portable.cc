#include "kernels/cpu/bytes_portable.h"
#include "kernels/cpu/quantized_kernel.inl.h"

namespace quire {

const QuantizedKernels kQuantizedPortable = KernelsOf<BytesPortable>();

}  // namespace quire
