// HostBackend is the base of all backends that compute in main memory. Activations are fp32.
// Operations read a step's inputs directly from the caller's arrays. An operation or transfer is
// done when its call returns.
//
// Memory consists of anonymous pages, which become resident one by one, at the first write. A page
// that was never written reads as zero.
//
// Thread safety: as KernelBackend.
#ifndef QUIRE_KERNELS_API_HOST_BACKEND_H_
#define QUIRE_KERNELS_API_HOST_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"

#include "kernels/api/host_windows.h"
#include "kernels/api/kernel_backend.h"
#include "kernels/api/row_gather.h"

namespace quire {

class HostBackend : public KernelBackend {
 public:
  void BindThread() override {}
  absl::Status PrepareFor(const ModelConfig& /*config*/, const RankShare& /*share*/) override {
    return absl::OkStatus();
  }
  DType activation_dtype() const override { return DType::kF32; }
  bool adds_bias_to_sums() const override { return true; }
  bool CanStoreKvAs(DType /*dtype*/) const override { return true; }
  std::optional<DeviceSpace> space() const override { return std::nullopt; }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override;
  void Upload(void* device, const void* host, int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateHost(int64_t bytes) override {
    return Allocate(bytes);
  }
  int64_t window_page_bytes() const override { return HostPageBytes(); }
  std::optional<int64_t> max_window_places() const override { return MaxMappedHostPlaces(); }
  absl::StatusOr<std::unique_ptr<WindowMemory>> AllocateWindows(const WindowShape& shape) override {
    return MakeHostWindows(shape);
  }
  StepInputs BeginStep(const StepInputs& host) override { return host; }
  void RunStep(const std::function<void()>& operations) override { operations(); }

  TransferId StartTransfer(const BlockTransferParams& params) override;
  void OrderAfter(TransferId /*transfer*/) override {}
  TransferId TransfersDone() override { return num_transfers_; }
  void WaitForTransfers() override {}

  absl::Status JoinGroup(std::shared_ptr<Communicator> group) override;
  void AllReduce(const AllReduceParams& params) override;
  void Gather(const GatherParams& params) override;
  void Broadcast(std::span<std::byte> data) override { group_->Broadcast(data); }

 protected:
  static void CopyBlock(const BlockTransferParams& params, size_t index);
  virtual void Transfer(const BlockTransferParams& params);

 private:
  TransferId num_transfers_ = 0;
  std::shared_ptr<Communicator> group_;
  RowGather row_gather_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_HOST_BACKEND_H_
