#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/paged_attention_kernel.inl.h"
#include "kernels/cpu/simd_avx512.h"

namespace quire {

void PagedAttentionAvx512(const PagedAttentionParams& params, ThreadTeam& team) {
  PagedAttentionKernel<SimdAvx512>(params, team);
}

}  // namespace quire
