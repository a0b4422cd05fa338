#include "kernels/reference/reference_backend.h"

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "kernels/api/host_backend.h"
#include "kernels/reference/pack_linear.h"
#include "kernels/reference/reference_ops.h"

namespace quire {
namespace {

class ReferenceBackend : public HostBackend {
 public:
  std::string name() const override { return "reference"; }

  KvCacheLayout LayoutFor(const KvCacheSpec& spec) const override {
    return WithScales(TokenMajorKeys(spec));
  }

  absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) override {
    return reference::PackLinear(source);
  }

  void Embed(const EmbeddingParams& params) override { reference::Embed(params); }
  void Norm(const NormParams& params) override { reference::Norm(params); }
  void Linear(const LinearParams& params) override { reference::Linear(params); }
  void Activate(const ActivationParams& params) override { reference::Activate(params); }
  void PrepareAttention(const PrepareAttentionParams& params) override {
    reference::PrepareAttention(params);
  }
  void PagedAttention(const PagedAttentionParams& params) override {
    reference::PagedAttention(params);
  }
  void CopyBlocks(const CopyBlocksParams& params) override { reference::CopyBlocks(params); }
  void Sample(const SampleParams& params) override { reference::Sample(params); }
};

}  // namespace

std::unique_ptr<KernelBackend> CreateReferenceBackend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace quire
