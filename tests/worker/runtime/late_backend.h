// LateBackend is a backend whose transfers take place as late as the interface allows: in a wait,
// or after TransfersDone was called a few times. Another backend does all other work.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_TESTS_WORKER_RUNTIME_LATE_BACKEND_H_
#define QUIRE_TESTS_WORKER_RUNTIME_LATE_BACKEND_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/api/kernel_backend.h"

namespace quire {

class LateBackend : public KernelBackend {
 public:
  explicit LateBackend(std::unique_ptr<KernelBackend> below) : below_(std::move(below)) {}

  std::string name() const override { return below_->name(); }
  void BindThread() override { below_->BindThread(); }
  absl::Status PrepareFor(const ModelConfig& config, const RankShare& share) override {
    return below_->PrepareFor(config, share);
  }
  KvCacheLayout LayoutFor(const KvCacheSpec& spec) const override {
    return below_->LayoutFor(spec);
  }
  bool CanStoreKvAs(DType dtype) const override { return below_->CanStoreKvAs(dtype); }
  DType activation_dtype() const override { return below_->activation_dtype(); }
  bool adds_bias_to_sums() const override { return below_->adds_bias_to_sums(); }
  std::optional<DeviceSpace> space() const override { return below_->space(); }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override {
    return below_->Allocate(bytes);
  }
  int64_t window_page_bytes() const override { return below_->window_page_bytes(); }
  std::optional<int64_t> max_window_places() const override { return below_->max_window_places(); }
  absl::StatusOr<std::unique_ptr<WindowMemory>> AllocateWindows(const WindowShape& shape) override {
    return below_->AllocateWindows(shape);
  }
  void Upload(void* device, const void* host, int64_t bytes) override {
    below_->Upload(device, host, bytes);
  }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateHost(int64_t bytes) override {
    return below_->AllocateHost(bytes);
  }
  absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) override {
    return below_->PackLinear(source);
  }
  StepInputs BeginStep(const StepInputs& host) override { return below_->BeginStep(host); }
  void RunStep(const std::function<void()>& operations) override { below_->RunStep(operations); }
  void Embed(const EmbeddingParams& params) override { below_->Embed(params); }
  void Norm(const NormParams& params) override { below_->Norm(params); }
  void Linear(const LinearParams& params) override { below_->Linear(params); }
  void Activate(const ActivationParams& params) override { below_->Activate(params); }
  void PrepareAttention(const PrepareAttentionParams& params) override {
    below_->PrepareAttention(params);
  }
  void PagedAttention(const PagedAttentionParams& params) override {
    below_->PagedAttention(params);
  }
  void CopyBlocks(const CopyBlocksParams& params) override { below_->CopyBlocks(params); }
  void Sample(const SampleParams& params) override { below_->Sample(params); }
  uint64_t progress() const override { return below_->progress(); }
  absl::Status JoinGroup(std::shared_ptr<Communicator> group) override {
    return below_->JoinGroup(std::move(group));
  }
  void AllReduce(const AllReduceParams& params) override { below_->AllReduce(params); }
  void Gather(const GatherParams& params) override { below_->Gather(params); }
  void Broadcast(std::span<std::byte> data) override { below_->Broadcast(data); }

  TransferId StartTransfer(const BlockTransferParams& params) override {
    late_.push_back({.id = ++num_started_,
                     .params = params,
                     .blocks = {params.blocks.begin(), params.blocks.end()},
                     .host_blocks = {params.host_blocks.begin(), params.host_blocks.end()}});
    return num_started_;
  }
  // Does the named transfer and the earlier ones of its direction, and no others.
  void OrderAfter(TransferId transfer) override {
    for (Late& late : late_) {
      if (late.id == transfer) {
        const TransferDirection direction = late.params.direction;
        for (Late& before : late_) {
          if (before.id <= transfer && before.params.direction == direction) {
            Do(&before);
          }
        }
      }
    }
  }
  TransferId TransfersDone() override {
    constexpr int kPatience = 3;
    if (!late_.empty() && ++num_asked_ % kPatience == 0) {
      Do(&late_.front());
    }
    while (!late_.empty() && late_.front().is_done) {
      late_.pop_front();
    }
    return late_.empty() ? num_started_ : late_.front().id - 1;
  }
  void WaitForTransfers() override {
    for (Late& late : late_) {
      Do(&late);
    }
    late_.clear();
  }

  bool has_late_transfers() const { return !late_.empty(); }

 private:
  struct Late {
    TransferId id = 0;
    BlockTransferParams params;
    std::vector<BlockId> blocks;
    std::vector<HostBlockId> host_blocks;
    bool is_done = false;
  };

  void Do(Late* late) {
    if (!std::exchange(late->is_done, true)) {
      late->params.blocks = late->blocks;
      late->params.host_blocks = late->host_blocks;
      below_->StartTransfer(late->params);
    }
  }

  std::unique_ptr<KernelBackend> below_;
  std::deque<Late> late_;
  TransferId num_started_ = 0;
  int num_asked_ = 0;
};

}  // namespace quire

#endif  // QUIRE_TESTS_WORKER_RUNTIME_LATE_BACKEND_H_
