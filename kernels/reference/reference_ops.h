// The operations of the reference backend, one free function per file of the same name. Each is the
// definition of its KernelBackend operation, written for reading: plain loops, sums in double.
// Needs no library, so that the tests of a GPU machine have it (PackLinear is in pack_linear.h).
//
// Thread safety: free functions; safe as long as nobody else writes what they are given.
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

// What Sample draws from: for each token its probability over the likeliest token's, 0 for those
// that are excluded; of a greedy row all but one. Empty where nothing can be sampled.
std::vector<double> SamplingWeights(const SamplingRow& row, std::span<const float> logits);
// u of the draw, in [0, 1).
double UniformOf(const SamplingRow& row);

}  // namespace quire::reference

#endif  // QUIRE_KERNELS_REFERENCE_REFERENCE_OPS_H_
