#include "kernels/cpu/row_scan.h"
#include "kernels/cpu/row_scan_kernel.inl.h"
#include "kernels/cpu/simd_avx512.h"

namespace quire {

const RowScan& RowScanAvx512() { return RowScanKernel<SimdAvx512>::kScan; }

}  // namespace quire
