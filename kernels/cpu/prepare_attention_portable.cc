#include "kernels/cpu/prepare_attention.h"
#include "kernels/cpu/prepare_attention_kernel.inl.h"
#include "kernels/cpu/simd_portable.h"

namespace quire {

void PrepareAttentionPortable(const PrepareAttentionParams& params, ThreadTeam& team) {
  PrepareAttentionKernel<SimdPortable>(params, team);
}

}  // namespace quire
