// GpuBackend, the class behind CreateGpuBackend. Its functions are in files by concept:
//
//   gpu_backend.cc             the model, ranks
//   gpu_backend_memory.cc      device memory, the memory of steps
//   gpu_backend_steps.cc       steps, their graphs, sampling
//   gpu_backend_operations.cc  operations of a model
//
// Thread safety, errors: gpu_backend.h.
#ifndef QUIRE_KERNELS_GPU_GPU_BACKEND_CLASS_H_
#define QUIRE_KERNELS_GPU_GPU_BACKEND_CLASS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/api/kernel_backend.h"
#include "kernels/api/progress_counter.h"
#include "kernels/gpu/decode_plans.h"
#include "kernels/gpu/gpu_backend.h"
#include "kernels/gpu/gpu_library.h"
#include "kernels/gpu/gpu_linear.h"
#include "kernels/gpu/gpu_memory.h"
#include "kernels/gpu/gpu_sampler.h"
#include "kernels/gpu/gpu_transfers.h"
#include "kernels/gpu/gpu_windows.h"
#include "kernels/gpu/graph_cache.h"
#include "kernels/gpu/nccl_group.h"
#include "kernels/gpu/operation_digest.h"
#include "kernels/gpu/staged_group.h"
#include "kernels/gpu/step_memory.h"
#include "kernels/gpu/step_packer.h"

namespace quire {

class GpuBackend final : public KernelBackend {
 public:
  // gemm: from create_gemm; the backend destroys it.
  GpuBackend(const GpuLibrary& library, const GpuBackendOptions& options, void* gemm);
  ~GpuBackend() override;

  std::string name() const override;

  void BindThread() override { Require(api_.set_device(library_.device().index), "set device"); }

  absl::Status PrepareFor(const ModelConfig& config, const RankShare& share) override;

  KvCacheLayout LayoutFor(const KvCacheSpec& spec) const override { return SwizzledRows(spec); }
  bool CanStoreKvAs(DType dtype) const override {
    return dtype == dtype_ || dtype == DType::kF8E4M3;
  }
  DType activation_dtype() const override { return dtype_; }
  bool adds_bias_to_sums() const override { return false; }

  std::optional<DeviceSpace> space() const override;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override;
  int64_t window_page_bytes() const override { return window_page_bytes_; }
  absl::StatusOr<std::unique_ptr<WindowMemory>> AllocateWindows(const WindowShape& shape) override {
    graphs_.Clear();  // the caller may free older memory, whose addresses graphs hold
    return GpuWindows::Create(api_, stream_, shape);
  }
  void Upload(void* device, const void* host, int64_t bytes) override {
    Require(api_.copy_to_device(device, host, static_cast<size_t>(bytes), stream_), "upload");
    Require(api_.synchronize(stream_), "upload");  // a copy from pinned memory is asynchronous
  }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateHost(int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) override {
    if (source.is_quantizable && options_.quantization == GpuQuantization::kFp8) {
      auto packed = GpuLinear::PackFp8(source, dtype_, api_, stream_, *this);
      if (packed.ok()) {
        shape_.fp8_width = std::max(shape_.fp8_width, (*packed)->in_features());
      }
      return packed;
    }
    return GpuLinear::Pack(source, dtype_, *this);
  }

  absl::Status ReserveForSteps(const StepBounds& bounds) override;
  int64_t max_record_bytes() const override {
    constexpr int64_t kDeviceParts = 40;
    return options_.use_graphs
               ? std::min(options_.max_graph_bytes, library_.device().total_bytes / kDeviceParts)
               : 0;
  }
  std::vector<int32_t> BatchesToRecord(int32_t max_seqs) const override;
  StepInputs BeginStep(const StepInputs& host) override;
  bool begins_ahead() const override { return true; }
  void AnnounceOperations(const std::function<void()>& operations) override;
  void RunStep(const std::function<void()>& operations) override;
  void WaitForOperations() override {
    if (nccl_ != nullptr) {
      nccl_->Finish();
    }
    Require(api_.synchronize(stream_), "step");
  }

  void Embed(const EmbeddingParams& params) override;
  void Norm(const NormParams& params) override;
  void Linear(const LinearParams& params) override;
  void Activate(const ActivationParams& params) override;
  void PrepareAttention(const PrepareAttentionParams& params) override;
  void PagedAttention(const PagedAttentionParams& params) override;
  void CopyBlocks(const CopyBlocksParams& params) override;
  void AnnounceSampling(std::span<const SamplingRow> rows) override { announced_ = rows; }
  void Sample(const SampleParams& params) override;
  uint64_t progress() const override { return launches_.value(); }

  absl::Status JoinGroup(std::shared_ptr<Communicator> group) override;
  void AllReduce(const AllReduceParams& params) override {
    if (IsOnlyNamed(params)) {
      return;
    }
    nccl_ != nullptr ? nccl_->AllReduce(params) : staged_->AllReduce(params);
    launches_.Add();
  }
  void Gather(const GatherParams& params) override {
    if (IsOnlyNamed(params)) {
      return;
    }
    nccl_ != nullptr ? nccl_->Gather(params) : staged_->Gather(params);
    launches_.Add();
  }
  void Broadcast(std::span<std::byte> data) override {
    Require(api_.synchronize(stream_), "step");
    group_->Broadcast(data);
  }

  TransferId StartTransfer(const BlockTransferParams& params) override {
    return transfers_.Start(params);
  }
  void OrderAfter(TransferId transfer) override { transfers_.OrderAfter(transfer); }
  TransferId TransfersDone() override { return transfers_.Done(); }
  void WaitForTransfers() override { transfers_.Wait(); }

 private:
  // Checks the result of a call that enqueues work on the device, and counts the call as progress.
  void Require(int error, const char* what) const {
    RequireGpu(api_, error, what);
    launches_.Add();
  }
  void LeaveGroup();
  // Returns the layout of one layer of this rank's KV heads, to find out which kernels can read it.
  // The block size does not matter for that.
  KvCacheLayout LayoutOf(DType cache_dtype) const {
    return LayoutFor({.num_layers = 1,
                      .num_kv_heads = shape_.num_kv_heads,
                      .head_dim = shape_.head_dim,
                      .block_size_tokens = 16,
                      .dtype = cache_dtype});
  }
  // Returns the digest of the operations that the function calls. Runs none of them.
  uint64_t DigestOf(const std::function<void()>& operations);
  // If a digest is being computed, adds the operation's parameters to it and returns true. The
  // caller must then not run the operation. Else returns false.
  template <typename Params>
  bool IsOnlyNamed(const Params& params) {
    if (digest_.has_value()) {
      digest_->Add(params);
    }
    return digest_.has_value();
  }
  // Enqueues the sampling of the announced rows. While a digest is computed, adds the sampling's
  // parameters to the digest instead.
  void SampleAhead();
  // Whether RunStep records and replays the step's operations.
  bool UsesGraph() const { return step_.is_replayable && staged_ == nullptr; }
  // Runs the operations, or replays or records them.
  void RunReplayable(const std::function<void()>& operations);
  void Launch(gpu::Graph graph);
  // Records the operations as a graph and launches it. Runs them if there is no memory for a graph.
  void RecordAndLaunch(uint64_t name, const std::function<void()>& operations);
  // Allocates the memory of steps within `bounds`. Drops the graphs, which hold the old addresses.
  absl::Status Reserve(const StepBounds& bounds);
  // Copies the step's block tables to rows of the width that all replayed steps have.
  void SpreadTables();
  // Makes room for the step if it exceeds bounds_, because the caller has reserved too little or
  // nothing.
  void CoverStep(const StepInputs& host);
  // Rounds the product's input rows to e4m3.
  void QuantizeInput(gpu::GemmArgs* product);

  const GpuLibrary library_;
  const gpu::GpuApi& api_;
  const GpuBackendOptions options_;
  void* gemm_;
  DType dtype_ = DType::kBF16;  // type of activations and weights; set by PrepareFor
  const gpu::Stream stream_;
  const int64_t window_page_bytes_;
  GpuTransfers transfers_;

  // group_ is null if there is one rank. With several ranks, collectives go through nccl_ or, if
  // nccl_ is null, through staged_, in main memory.
  std::shared_ptr<Communicator> group_;
  std::unique_ptr<NcclGroup> nccl_;
  std::unique_ptr<StagedGroup> staged_;

  // The number of ranks, and this rank's share of the model.
  int32_t num_ranks_ = 1;
  StepShape shape_;
  int64_t vocab_size_ = 0;
  std::optional<StepPacker> packer_;

  StepBounds bounds_;  // for which the memory below suffices

  PackedStep step_;  // the current step
  StepMemory memory_{api_};
  DecodePlans decode_plans_{api_, stream_, memory_};

  GpuSampler sampler_;
  std::span<const SamplingRow> announced_;  // AnnounceSampling for this step; empty: none
  bool samples_ahead_ = false;              // whether the step samples the announced rows
  // The output of the last product with fp32 output. In a step only the logits are fp32.
  struct LastLogits {
    float* data = nullptr;
    int32_t num_rows = 0;
    int32_t vocab_size = 0;
  } logits_;
  mutable ProgressCounter launches_;
  // The last PrepareAttention. It is also the last operation of all if no launch was counted since.
  struct LastPrepared {
    const void* qkv = nullptr;
    uint64_t launch = 0;
  } last_prepared_;

  // The first step with a digest runs unrecorded, the second step with the same digest is recorded.
  GraphCache graphs_;
  std::optional<OperationDigest> digest_;   // set while operations are named and not run
  std::optional<uint64_t> announced_name_;  // digest of the operations that RunStep will run
  uint64_t num_moves_ = 0;                  // reallocations of steps' memory; part of each digest
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_GPU_BACKEND_CLASS_H_
