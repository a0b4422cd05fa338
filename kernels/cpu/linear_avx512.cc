#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_kernel.inl.h"
#include "kernels/cpu/simd_avx512.h"

namespace quire {

void LinearAvx512(const LinearParams& params, ThreadTeam& team) {
  LinearKernel<SimdAvx512, kAvx512Panel.panel / kAvx512Panel.lanes>::RunWidened(params, team);
}

}  // namespace quire
