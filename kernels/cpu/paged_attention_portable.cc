#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/paged_attention_kernel.inl.h"
#include "kernels/cpu/simd_portable.h"

namespace quire {

void PagedAttentionPortable(const PagedAttentionParams& params, ThreadTeam& team) {
  PagedAttentionKernel<SimdPortable>(params, team);
}

}  // namespace quire
