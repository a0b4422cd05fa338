// KernelBackend is the set of operations that a model runs on, and the memory they run in. CPU, GPU
// and reference backends implement the same class.
//
// Every pointer in the parameters of an operation points to memory of Allocate, or to what
// BeginStep and PackLinear gave; a HostBackend takes any pointer. Host data is named where it
// occurs.
//
// Thread safety: one caller at a time (the executor thread), except where it says otherwise.
//                Operations take effect in the order of their calls; Sample waits for all of them.
//                Transfers go on beside them.
// Errors:        arguments are the caller's duty and were checked before (step_plan_check); an
//                operation itself cannot fail on the CPU. A GPU that fails ends the process: it has
//                to be opened anew, and the scheduler recomputes. Allocation returns
//                kResourceExhausted.
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

  // Called on each thread before it calls anything else here, except on the one that made the
  // backend: a GPU is bound to threads.
  virtual void BindThread() = 0;

  // Says which part of which model will run, before anything else is called. Errors:
  // kFailedPrecondition, reason DEVICE, naming what of it there is no kernel for.
  virtual absl::Status PrepareFor(const ModelConfig& config, const RankShare& share) = 0;

  // These four: any thread, once PrepareFor has returned.
  virtual KvCacheLayout LayoutFor(const KvCacheSpec& spec) const = 0;
  virtual bool CanStoreKvAs(DType dtype) const = 0;
  // The type of what linear layers read and write.
  virtual DType activation_dtype() const = 0;
  // Whether AllReduce takes a bias. Where it does not, one rank's product adds it, before the sum.
  virtual bool adds_bias_to_sums() const = 0;

  // Tokens of a step that keep products full; 256 where that was not measured, GPUs among them. Any
  // thread.
  virtual int32_t full_step_tokens() const { return 256; }

  // Nothing when the backend computes in main memory.
  virtual std::optional<DeviceSpace> space() const = 0;

  // Zeroed memory. Errors: kResourceExhausted, reason MEMORY.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) = 0;
  // What blocks must be a multiple of to be seen through windows; 0: there are none. Any thread.
  virtual int64_t window_page_bytes() const { return 0; }
  // How many places of windows may show something, whatever their shape; nothing: all. Any thread.
  virtual std::optional<int64_t> max_window_places() const { return std::nullopt; }
  // A pool and windows onto it (window_memory.h). Errors: kResourceExhausted, reason MEMORY.
  // REQUIRES: window_page_bytes() > 0, and that it divides the block.
  virtual absl::StatusOr<std::unique_ptr<WindowMemory>> AllocateWindows(
      const WindowShape& /*shape*/) {
    return Error(absl::StatusCode::kUnimplemented, "DEVICE", "windows: this device has none");
  }
  // From host memory, which may be reused when the call returns.
  virtual void Upload(void* device, const void* host, int64_t bytes) = 0;
  // Host memory that transfers read and write; zeroed. Errors: kResourceExhausted, reason MEMORY.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateHost(int64_t bytes) = 0;

  // PackLinear takes sources with a reader, and asks it on several threads, the caller's among
  // them. Weights are in main memory then, and Embed looks up rows in packed ones, so that a matrix
  // that is a table too is kept once.
  virtual bool packs_while_reading() const { return false; }

  // What PackLinear takes of main memory for a source, which needs no data for it; on a device:
  // what the parts have.
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

  // Brings the inputs of the next step, which are host arrays, to where the operations read them.
  // The result is valid until the next call. It may have more rows than were given, all of them
  // padding that takes part in nothing (slot -1, length 0).
  virtual StepInputs BeginStep(const StepInputs& host) = 0;
  // Runs the operations that the function calls, for the inputs of the last BeginStep. A backend
  // may record them, and repeat the record without calling the function for another step of the
  // same shape: so they must depend on nothing but the inputs' shape and memory that stays where it
  // is.
  virtual void RunStep(const std::function<void()>& operations) = 0;

  // Waits until all operations are done; for a backend that runs them later than they are called.
  virtual void WaitForOperations() {}

  virtual void Embed(const EmbeddingParams& params) = 0;
  virtual void Norm(const NormParams& params) = 0;
  virtual void Linear(const LinearParams& params) = 0;
  virtual void Activate(const ActivationParams& params) = 0;
  // A backend that can do better than one operation after the other does, with the same bits.
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
  // The last transfer that is done together with all before it, 0 for none. Does not wait.
  virtual TransferId TransfersDone() = 0;
  // Waits until all transfers are done.
  virtual void WaitForTransfers() = 0;

  virtual void Sample(const SampleParams& params) = 0;

  // The ranks with which the operations below are done from now on; null: none.
  virtual absl::Status JoinGroup(std::shared_ptr<Communicator> group) = 0;
  // These three: REQUIRES a group.
  virtual void AllReduce(const AllReduceParams& params) = 0;
  virtual void Gather(const GatherParams& params) = 0;
  // Host memory: rank 0's bytes, on all ranks. Waits for all operations before it.
  virtual void Broadcast(std::span<std::byte> data) = 0;

  // Grows while operations are under way and stands still when they are stuck: parts of operations
  // finished on a CPU, operations handed to a GPU, which may run behind by as much as its queue
  // holds. Any thread; it may lag a little behind.
  virtual uint64_t progress() const = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_KERNEL_BACKEND_H_
