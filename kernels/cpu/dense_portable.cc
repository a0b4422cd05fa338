#include "kernels/cpu/activate_kernel.inl.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/embed_kernel.inl.h"
#include "kernels/cpu/norm_kernel.inl.h"
#include "kernels/cpu/simd_portable.h"

namespace quire {

void EmbedPortable(const EmbeddingParams& params, ThreadTeam& team) {
  EmbedKernel<SimdPortable>::Run(params, team);
}

void NormPortable(const NormParams& params, ThreadTeam& team) {
  NormKernel<SimdPortable>::Run(params, team);
}

void ActivatePortable(const ActivationParams& params, ThreadTeam& team) {
  ActivateKernel<SimdPortable>::Run(params, team);
}

}  // namespace quire
