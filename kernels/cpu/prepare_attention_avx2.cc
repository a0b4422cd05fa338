#include "kernels/cpu/prepare_attention.h"
#include "kernels/cpu/prepare_attention_kernel.inl.h"
#include "kernels/cpu/simd_avx2.h"

namespace quire {

void PrepareAttentionAvx2(const PrepareAttentionParams& params, ThreadTeam& team) {
  PrepareAttentionKernel<SimdAvx2>(params, team);
}

}  // namespace quire
