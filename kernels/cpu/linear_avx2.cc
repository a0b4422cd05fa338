#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_kernel.inl.h"
#include "kernels/cpu/simd_avx2.h"

namespace quire {

void LinearAvx2(const LinearParams& params, ThreadTeam& team) {
  LinearKernel<SimdAvx2, kAvx2Panel.panel / kAvx2Panel.lanes>::RunWidened(params, team);
}

}  // namespace quire
