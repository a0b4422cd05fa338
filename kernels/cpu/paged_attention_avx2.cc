#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/paged_attention_kernel.inl.h"
#include "kernels/cpu/simd_avx2.h"

namespace quire {

void PagedAttentionAvx2(const PagedAttentionParams& params, ThreadTeam& team) {
  PagedAttentionKernel<SimdAvx2>(params, team);
}

}  // namespace quire
