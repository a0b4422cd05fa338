// The operations of the reference backend, one free function per file of the same name. Each is the
// definition of its KernelBackend operation, written for reading: plain loops, sums in double.
//
// Thread safety: free functions; safe as long as nobody else writes what they are given.
#ifndef QUIRE_KERNELS_REFERENCE_REFERENCE_OPS_H_
#define QUIRE_KERNELS_REFERENCE_REFERENCE_OPS_H_

#include <memory>

#include "absl/status/statusor.h"

#include "kernels/api/kernel_backend.h"

namespace quire::reference {

absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source);

void Embed(const EmbeddingParams& params);
void Norm(const NormParams& params);
void Linear(const LinearParams& params);
void Activate(const ActivationParams& params);
void PrepareAttention(const PrepareAttentionParams& params);
void PagedAttention(const PagedAttentionParams& params);
void CopyBlocks(const CopyBlocksParams& params);
void Sample(const SampleParams& params);

}  // namespace quire::reference

#endif  // QUIRE_KERNELS_REFERENCE_REFERENCE_OPS_H_
