#include "kernels/cpu/row_scan.h"
#include "kernels/cpu/row_scan_kernel.inl.h"
#include "kernels/cpu/simd_avx2.h"

namespace quire {

const RowScan& RowScanAvx2() { return RowScanKernel<SimdAvx2>::kScan; }

}  // namespace quire
