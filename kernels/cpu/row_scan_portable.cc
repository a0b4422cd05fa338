#include "kernels/cpu/row_scan.h"
#include "kernels/cpu/row_scan_kernel.inl.h"
#include "kernels/cpu/simd_portable.h"

namespace quire {

const RowScan& RowScanPortable() { return RowScanKernel<SimdPortable>::kScan; }

}  // namespace quire
