#include "kernels/cpu/activate_kernel.inl.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/embed_kernel.inl.h"
#include "kernels/cpu/norm_kernel.inl.h"
#include "kernels/cpu/simd_avx512.h"

namespace quire {

void EmbedAvx512(const EmbeddingParams& params, ThreadTeam& team) {
  EmbedKernel<SimdAvx512>::Run(params, team);
}

void NormAvx512(const NormParams& params, ThreadTeam& team) {
  NormKernel<SimdAvx512>::Run(params, team);
}

void ActivateAvx512(const ActivationParams& params, ThreadTeam& team) {
  ActivateKernel<SimdAvx512>::Run(params, team);
}

}  // namespace quire
