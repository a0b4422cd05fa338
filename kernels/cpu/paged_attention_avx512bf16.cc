#include "kernels/cpu/paged_attention.h"
#include "kernels/cpu/paged_attention_kernel.inl.h"
#include "kernels/cpu/paged_attention_pairs.inl.h"

namespace quire {

void PagedAttentionAvx512Bf16(const PagedAttentionParams& params, ThreadTeam& team) {
  if (params.cache.layout.dtype != DType::kBF16) {
    return PagedAttentionAvx512(params, team);
  }
  PagedAttentionOf<PairProducts, PairProducts, BFloat16>(params, team);
}

}  // namespace quire
