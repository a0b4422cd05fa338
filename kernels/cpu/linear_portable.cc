#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_kernel.inl.h"
#include "kernels/cpu/simd_portable.h"

namespace quire {

void LinearPortable(const LinearParams& params, ThreadTeam& team) {
  LinearKernel<SimdPortable, kPortablePanel.panel / kPortablePanel.lanes>::RunWidened(params, team);
}

}  // namespace quire
