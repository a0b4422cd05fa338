// The operations of the reference backend, one free function per file of the same name. Each is the
// definition of its KernelBackend operation, written for reading: plain loops, sums in double.
// Needs no library, so that tests on a GPU machine can link it (PackLinear is in pack_linear.h).
//
// Thread safety: free functions; safe while no other thread writes their arguments' memory.
#ifndef QUIRE_KERNELS_REFERENCE_REFERENCE_OPS_H_
#define QUIRE_KERNELS_REFERENCE_REFERENCE_OPS_H_

#include <span>
#include <vector>

#include "kernels/api/attention.h"
#include "kernels/api/copy_blocks.h"
#include "kernels/api/dense.h"
#include "kernels/api/sampling.h"

namespace quire::reference {

void Embed(const EmbeddingParams& params);
void Norm(const NormParams& params);
void Linear(const LinearParams& params);
void Activate(const ActivationParams& params);
void PrepareAttention(const PrepareAttentionParams& params);
void PagedAttention(const PagedAttentionParams& params);
void CopyBlocks(const CopyBlocksParams& params);
void Sample(const SampleParams& params);

// Returns the weights that Sample draws from: each token's probability over the likeliest token's,
// 0 for an excluded token; in a greedy row all but one are excluded. Empty if no token can be
// sampled.
std::vector<double> SamplingWeights(const SamplingRow& row, std::span<const float> logits);
// Returns u of the draw, in [0, 1).
double UniformOf(const SamplingRow& row);

}  // namespace quire::reference

#endif  // QUIRE_KERNELS_REFERENCE_REFERENCE_OPS_H_
