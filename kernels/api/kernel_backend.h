// KernelBackend is the set of operations that a model runs on. The CPU backend is here; the CUDA
// backend and the reference implement the same class.
//
// Thread safety: one caller at a time (the executor thread). An operation is finished when the call
//                returns.
// Errors:        arguments are the caller's duty and were checked before (step_plan_check); an
//                operation itself cannot fail on the CPU. Allocation returns kResourceExhausted.
#ifndef QUIRE_KERNELS_API_KERNEL_BACKEND_H_
#define QUIRE_KERNELS_API_KERNEL_BACKEND_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "kernels/api/attention.h"
#include "kernels/api/dense.h"
#include "kernels/api/kv_cache_layout.h"
#include "kernels/api/sampling.h"

namespace quire {

// (src, dst) pairs of whole blocks; no dst is also a src or another dst.
struct CopyBlocksParams {
  KvCacheView cache;
  std::span<const BlockId> src;
  std::span<const BlockId> dst;
};

class KernelBackend {
 public:
  virtual ~KernelBackend() = default;

  // "cpu-avx512", "cpu-avx512bf16", "cpu-avx2", "cpu-portable", "reference": also the determinism
  // fingerprint. Two backends with the same name give the same bits.
  virtual std::string name() const = 0;

  virtual KvCacheLayout LayoutFor(const KvCacheSpec& spec) const = 0;

  // Copies weights into the backend's own order. Errors: kInvalidArgument when the parts disagree
  // on their columns or kTree8 does not divide them; kResourceExhausted.
  virtual absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) = 0;

  virtual void Embed(const EmbeddingParams& params) = 0;
  virtual void Norm(const NormParams& params) = 0;
  virtual void Linear(const LinearParams& params) = 0;
  virtual void Activate(const ActivationParams& params) = 0;
  virtual void PrepareAttention(const PrepareAttentionParams& params) = 0;
  virtual void PagedAttention(const PagedAttentionParams& params) = 0;
  virtual void CopyBlocks(const CopyBlocksParams& params) = 0;
  virtual void Sample(const SampleParams& params) = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_KERNEL_BACKEND_H_
