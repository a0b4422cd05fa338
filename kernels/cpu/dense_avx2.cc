#include "kernels/cpu/activate_kernel.inl.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/embed_kernel.inl.h"
#include "kernels/cpu/norm_kernel.inl.h"
#include "kernels/cpu/simd_avx2.h"

namespace quire {

void EmbedAvx2(const EmbeddingParams& params, ThreadTeam& team) {
  EmbedKernel<SimdAvx2>::Run(params, team);
}

void NormAvx2(const NormParams& params, ThreadTeam& team) {
  NormKernel<SimdAvx2>::Run(params, team);
}

void ActivateAvx2(const ActivationParams& params, ThreadTeam& team) {
  ActivateKernel<SimdAvx2>::Run(params, team);
}

}  // namespace quire
