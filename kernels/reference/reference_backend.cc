#include "kernels/reference/reference_backend.h"

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "kernels/api/host_backend.h"
#include "kernels/api/progress_counter.h"
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

  void Embed(const EmbeddingParams& params) override {
    reference::Embed(params);
    operations_.Add();
  }
  void Norm(const NormParams& params) override {
    reference::Norm(params);
    operations_.Add();
  }
  void Linear(const LinearParams& params) override {
    reference::Linear(params);
    operations_.Add();
  }
  void Activate(const ActivationParams& params) override {
    reference::Activate(params);
    operations_.Add();
  }
  void PrepareAttention(const PrepareAttentionParams& params) override {
    reference::PrepareAttention(params);
    operations_.Add();
  }
  void PagedAttention(const PagedAttentionParams& params) override {
    reference::PagedAttention(params);
    operations_.Add();
  }
  void CopyBlocks(const CopyBlocksParams& params) override {
    reference::CopyBlocks(params);
    operations_.Add();
  }
  void Sample(const SampleParams& params) override {
    reference::Sample(params);
    operations_.Add();
  }
  uint64_t progress() const override { return operations_.value(); }

 private:
  ProgressCounter operations_;
};

}  // namespace

std::unique_ptr<KernelBackend> CreateReferenceBackend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace quire
