// Embedding, norm and activation on the CPU. kernels/api/dense.h is the contract.
//
// Norm adds up the squares of a row (kRmsNorm), or first its values and then the squares of their
// distances from the mean (kLayerNorm). The order of additions depends only on the width.
// Activations use the polynomial Exp of the Simd structs. silu and gelu_tanh are x / (1 + exp(-y)),
// where y is x for silu and a cubic polynomial of x for gelu_tanh. gelu uses the complementary
// error function, with a relative error of about 3e-7.
//
// Thread safety: one caller per team at a time.
// Cost:          one pass over the rows; parallel over rows if there is work for several tasks.
// Source: RMSNorm, Zhang and Sennrich 2019; GELU, Hendrycks and Gimpel 2016.
#ifndef QUIRE_KERNELS_CPU_DENSE_H_
#define QUIRE_KERNELS_CPU_DENSE_H_

#include "kernels/api/dense.h"
#include "kernels/cpu/thread_team.h"

namespace quire {

void EmbedAvx512(const EmbeddingParams& params, ThreadTeam& team);
void EmbedAvx2(const EmbeddingParams& params, ThreadTeam& team);
void EmbedPortable(const EmbeddingParams& params, ThreadTeam& team);

void NormAvx512(const NormParams& params, ThreadTeam& team);
void NormAvx2(const NormParams& params, ThreadTeam& team);
void NormPortable(const NormParams& params, ThreadTeam& team);

void ActivateAvx512(const ActivationParams& params, ThreadTeam& team);
void ActivateAvx2(const ActivationParams& params, ThreadTeam& team);
void ActivatePortable(const ActivationParams& params, ThreadTeam& team);

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_DENSE_H_
