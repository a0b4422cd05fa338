// The operations of the reference backend: free functions, each in a source file of its name. Each
// function specifies the KernelBackend operation of the same name, and is written for reading:
// plain loops, sums in double. linear.cc (Linear and PackLinear) needs abseil. The other files do
// not, so tests on a GPU machine without abseil can link them. pack_linear.h declares PackLinear.
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

// Returns the weights that Sample draws from: for each token its probability divided by that of the
// likeliest token, or 0 if the token is excluded. In a greedy row all tokens except one are
// excluded. Returns an empty vector if no token can be sampled.
std::vector<double> SamplingWeights(const SamplingRow& row, std::span<const float> logits);
// Returns the random number u in [0, 1) with which Sample draws the row's token
// (kernels/api/sampling.h).
double UniformOf(const SamplingRow& row);

}  // namespace quire::reference

#endif  // QUIRE_KERNELS_REFERENCE_REFERENCE_OPS_H_
