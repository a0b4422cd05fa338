// KernelBackend is the set of operations that a model runs on, and the memory they run in. CPU, GPU
// and reference backends implement the same class.
//
// Every pointer in an operation's parameters points to memory from Allocate, BeginStep or
// PackLinear, unless its comment names the host; a HostBackend takes any pointer.
//
// Thread safety: one caller at a time (the executor thread), except where it says otherwise.
//                Operations take effect in the order of their calls; Sample waits for all of them.
//                Transfers run concurrently.
// Errors:        the caller has checked all arguments (step_plan_check). An operation cannot fail
//                on the CPU. A failing GPU ends the process: the device must be reopened, and the
//                scheduler recomputes. Allocation returns kResourceExhausted.
#ifndef QUIRE_KERNELS_API_KERNEL_BACKEND_H_
#define QUIRE_KERNELS_API_KERNEL_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/error.h"
#include "common/model/model_config.h"
#include "common/model/rank_share.h"
#include "kernels/api/attention.h"
#include "kernels/api/block_transfer.h"
#include "kernels/api/collective.h"
#include "kernels/api/copy_blocks.h"
#include "kernels/api/dense.h"
#include "kernels/api/device_memory.h"
#include "kernels/api/kv_cache_layout.h"
#include "kernels/api/sampling.h"
#include "kernels/api/step_inputs.h"
#include "kernels/api/window_memory.h"
#include "kernels/collective/communicator.h"

namespace quire {

class KernelBackend {
 public:
  virtual ~KernelBackend() = default;

  // Any thread. "cpu-amx", "cpu-avx512", "cpu-avx512bf16", "cpu-avx2", "cpu-portable", "reference":
  // also the determinism fingerprint. Two backends with the same name give the same bits.
  virtual std::string name() const = 0;

  // Must be the first call of each thread, except of the thread that made the backend: a GPU is
  // bound to threads.
  virtual void BindThread() = 0;

  // Sets the model and this rank's share of it, before any other call. Errors: kFailedPrecondition,
  // reason DEVICE, naming the feature that has no kernel.
  virtual absl::Status PrepareFor(const ModelConfig& config, const RankShare& share) = 0;

  // The next four: any thread, once PrepareFor has returned.
  virtual KvCacheLayout LayoutFor(const KvCacheSpec& spec) const = 0;
  virtual bool CanStoreKvAs(DType dtype) const = 0;
  // The type that linear layers read and write.
  virtual DType activation_dtype() const = 0;
  // Whether AllReduce takes a bias. If it does not, one rank's product adds the bias before the
  // sum.
  virtual bool adds_bias_to_sums() const = 0;

  // Tokens in a step from which on matrix products run at full speed; 256 where that was not
  // measured, GPUs among them. Any thread.
  virtual int32_t full_step_tokens() const { return 256; }

  // Returns nullopt if the backend computes in main memory.
  virtual std::optional<DeviceSpace> space() const = 0;

  // Zeroed memory. Errors: kResourceExhausted, reason MEMORY.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) = 0;
  // Windows need a block size that is a multiple of this; 0: no windows. Any thread.
  virtual int64_t window_page_bytes() const { return 0; }
  // Upper bound on places that show a block, for windows of any shape; nullopt: no bound. Any
  // thread.
  virtual std::optional<int64_t> max_window_places() const { return std::nullopt; }
  // A pool and windows onto it (window_memory.h). Errors: kResourceExhausted, reason MEMORY.
  // REQUIRES: window_page_bytes() > 0, and it divides the block size.
  virtual absl::StatusOr<std::unique_ptr<WindowMemory>> AllocateWindows(
      const WindowShape& /*shape*/) {
    return Error(absl::StatusCode::kUnimplemented, "DEVICE", "windows: this device has none");
  }
  // Copies from host memory, which may be reused when the call returns.
  virtual void Upload(void* device, const void* host, int64_t bytes) = 0;
  // Zeroed host memory for transfers. Errors: kResourceExhausted, reason MEMORY.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateHost(int64_t bytes) = 0;

  // Whether PackLinear takes sources with a reader, called on several threads, the caller's among
  // them. Packed weights are then in main memory, and Embed reads rows of them, so that a matrix
  // that is also the token table is kept once.
  virtual bool packs_while_reading() const { return false; }

  // Bytes of main memory that PackLinear needs for a source, whose data is not read; on a device:
  // the bytes of the parts.
  virtual int64_t PackedBytes(const LinearSource& source) const {
    int64_t bytes = 0;
    for (const MatrixView& part : source.parts) {
      bytes += part.rows * part.cols * SizeOf(part.dtype);
    }
    return bytes;
  }

  // Copies weights into the backend's own order. Errors: kInvalidArgument when the parts disagree
  // on their columns or the segments do not divide them; kResourceExhausted; those of the reader.
  virtual absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) = 0;

  // Brings the next step's inputs, host arrays, to where operations read them. The result is valid
  // until the next call. It may have additional rows of padding that affect no other row (slot -1,
  // length 0).
  virtual StepInputs BeginStep(const StepInputs& host) = 0;
  // Runs the operations that the function calls, on the inputs of the last BeginStep. A backend may
  // record them and, for another step of the same shape, replay the record without calling the
  // function. So they may depend only on the inputs' shape and on memory that does not move.
  virtual void RunStep(const std::function<void()>& operations) = 0;

  // Waits until all operations are done. Asynchronous backends override it.
  virtual void WaitForOperations() {}

  virtual void Embed(const EmbeddingParams& params) = 0;
  virtual void Norm(const NormParams& params) = 0;
  virtual void Linear(const LinearParams& params) = 0;
  virtual void Activate(const ActivationParams& params) = 0;
  // A backend may override this with a faster way that gives the same bits.
  virtual void Mlp(const MlpParams& params) {
    Linear(
        {.num_tokens = params.num_tokens, .x = params.x, .y = params.between, .weight = params.in});
    Activate({.kind = params.activation,
              .gated = params.gated,
              .num_tokens = params.num_tokens,
              .width = params.width,
              .in = params.between,
              .out = params.activated});
    Linear({.num_tokens = params.num_tokens,
            .x = params.activated,
            .y = params.y,
            .weight = params.out});
  }
  virtual void PrepareAttention(const PrepareAttentionParams& params) = 0;
  virtual void PagedAttention(const PagedAttentionParams& params) = 0;
  // The ids are in host memory.
  virtual void CopyBlocks(const CopyBlocksParams& params) = 0;

  // Starts a transfer that takes place after all operations that were called before. Operations
  // called later may run before it is done: they must not touch its blocks, except after
  // OrderAfter. Transfers of one direction take place in the order of their calls.
  virtual TransferId StartTransfer(const BlockTransferParams& params) = 0;
  // Operations and transfers called later take place after this transfer.
  virtual void OrderAfter(TransferId transfer) = 0;
  // Returns the last transfer that is done and before which all are done; 0: none. Does not wait.
  virtual TransferId TransfersDone() = 0;
  // Waits until all transfers are done.
  virtual void WaitForTransfers() = 0;

  virtual void Sample(const SampleParams& params) = 0;

  // Sets the group for the operations below; null: none.
  virtual absl::Status JoinGroup(std::shared_ptr<Communicator> group) = 0;
  // The next three: REQUIRES a group.
  virtual void AllReduce(const AllReduceParams& params) = 0;
  virtual void Gather(const GatherParams& params) = 0;
  // Copies rank 0's bytes to all ranks, in host memory. Waits for all operations before it.
  virtual void Broadcast(std::span<std::byte> data) = 0;

  // Grows while operations run and stops if they are stuck. A CPU counts finished parts of
  // operations; a GPU counts submitted operations, which run behind by up to its queue's length.
  // Any thread; may lag a little.
  virtual uint64_t progress() const = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_KERNEL_BACKEND_H_
