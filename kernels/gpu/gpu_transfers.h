// GpuTransfers moves whole blocks between the KV pool and pinned host memory on the device's copy
// engines: one stream for each direction, beside the compute stream.
//
// A transfer begins after all operations that were enqueued before it on the compute stream. So a
// block is copied to the host only after it was written, and overwritten only after it was read.
// Blocks that are adjacent both on the device and on the host are moved in one copy.
//
// Thread safety: one caller at a time (the executor thread).
// Errors:        a failing device ends the process, as in GpuBackend.
#ifndef QUIRE_KERNELS_GPU_GPU_TRANSFERS_H_
#define QUIRE_KERNELS_GPU_GPU_TRANSFERS_H_

#include <cstddef>
#include <deque>
#include <vector>

#include "kernels/api/block_transfer.h"
#include "kernels/cuda/gpu_api.h"

namespace quire {

class GpuTransfers {
 public:
  GpuTransfers(const gpu::GpuApi& api, gpu::Stream compute);
  // Waits for transfers under way.
  ~GpuTransfers();
  GpuTransfers(const GpuTransfers&) = delete;
  GpuTransfers& operator=(const GpuTransfers&) = delete;

  // See KernelBackend::StartTransfer, OrderAfter, TransfersDone and WaitForTransfers.
  TransferId Start(const BlockTransferParams& params);
  void OrderAfter(TransferId transfer);
  TransferId Done();
  void Wait();

 private:
  struct UnderWay {
    TransferId id = 0;
    gpu::Event done = nullptr;
  };

  // Fills to_, from_ and bytes_.
  void PlanCopies(const BlockTransferParams& params);
  gpu::Event TakeEvent();
  void RetireFirst();

  const gpu::GpuApi& api_;
  const gpu::Stream compute_;
  gpu::Stream to_host_ = nullptr;
  gpu::Stream to_device_ = nullptr;
  gpu::Event computed_ = nullptr;

  TransferId num_started_ = 0;
  std::deque<UnderWay> under_way_;  // transfers under way, the oldest first
  std::vector<gpu::Event> free_events_;

  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<size_t> bytes_;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_GPU_GPU_TRANSFERS_H_
