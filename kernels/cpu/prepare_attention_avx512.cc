#include "kernels/cpu/prepare_attention.h"
#include "kernels/cpu/prepare_attention_kernel.inl.h"
#include "kernels/cpu/simd_avx512.h"

namespace quire {

void PrepareAttentionAvx512(const PrepareAttentionParams& params, ThreadTeam& team) {
  PrepareAttentionKernel<SimdAvx512>(params, team);
}

}  // namespace quire
