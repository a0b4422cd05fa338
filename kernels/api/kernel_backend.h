// KernelBackend is the set of operations that a model calls, and the memory that these operations
// use. CPU, GPU and reference backends implement the same class.
//
// Pointers in an operation's parameters point to memory from Allocate, AllocateWindows, BeginStep
// or PackLinear, except pointers whose comment says host memory. A HostBackend takes any pointer.
//
// Thread safety: one caller at a time (the executor thread), unless a function's comment allows any
//                thread. Operations take effect in the order of their calls. Sample returns only
//                when it and all earlier operations are done. Transfers run concurrently with
//                operations.
// Errors:        callers must check all arguments (step_plan_check.h). An operation cannot fail on
//                the CPU. A failing GPU ends the process. A new process opens the device again, and
//                the scheduler plans the lost steps again. If memory is lacking, allocation returns
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
#include <vector>

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

  // On a CPU, returns "cpu-amx", "cpu-avx512", "cpu-avx512bf16", "cpu-avx2" or "cpu-portable", with
  // "-f32" appended for InputType::kF32, or "reference". Workers report the name as determinism
  // fingerprint: backends with the same name give the same bits. Any thread.
  virtual std::string name() const = 0;

  // Binds the calling thread to the backend's device. Must be the first call of each thread, except
  // the thread that made the backend.
  virtual void BindThread() = 0;

  // Sets the model and this rank's share of the model. Must be called before LayoutFor,
  // CanStoreKvAs, activation_dtype, adds_bias_to_sums, PackLinear, BeginStep and all operations.
  // Errors: kFailedPrecondition, reason DEVICE; the message names the feature that has no kernel.
  virtual absl::Status PrepareFor(const ModelConfig& config, const RankShare& share) = 0;

  // Once PrepareFor has returned, any thread may call these four functions.
  virtual KvCacheLayout LayoutFor(const KvCacheSpec& spec) const = 0;
  virtual bool CanStoreKvAs(DType dtype) const = 0;
  // The type that linear layers read and write.
  virtual DType activation_dtype() const = 0;
  // Whether AllReduce can add a bias to the sum over ranks. If not, one rank adds the bias to its
  // own product, before AllReduce.
  virtual bool adds_bias_to_sums() const = 0;

  // Returns how many tokens a step needs so that matrix products run at full speed. The default is
  // a guess for backends that were not measured, such as GPUs. Any thread.
  virtual int32_t full_step_tokens() const { return 256; }

  // Returns the sizes of the device's memory, or nullopt if the backend computes in main memory.
  virtual std::optional<DeviceSpace> space() const = 0;

  // Returns zeroed memory. Errors: kResourceExhausted, reason MEMORY.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) = 0;
  // Returns the page size of windows (address ranges into which KV blocks are mapped,
  // window_memory.h). The size of a KV block, or of several that are mapped together, must be a
  // multiple of the page size. Returns 0 if the backend has no windows. Any thread.
  virtual int64_t window_page_bytes() const { return 0; }
  // Returns how many places (parts of windows, one block each) can have a mapped block at the same
  // time, for windows of any shape; nullopt: no bound. Any thread.
  virtual std::optional<int64_t> max_window_places() const { return std::nullopt; }
  // Returns a KV pool, and windows into which the pool's blocks can be mapped (window_memory.h).
  // Errors: kResourceExhausted, reason MEMORY. REQUIRES: window_page_bytes() > 0 and divides
  // shape.block_bytes.
  virtual absl::StatusOr<std::unique_ptr<WindowMemory>> AllocateWindows(
      const WindowShape& /*shape*/) {
    return Error(
        absl::StatusCode::kUnimplemented, "DEVICE", "windows: this device does not support them");
  }
  // Copies bytes from host memory to the backend's memory. The host memory may be reused when the
  // call returns.
  virtual void Upload(void* device, const void* host, int64_t bytes) = 0;
  // Returns zeroed host memory for transfers. Errors: kResourceExhausted, reason MEMORY.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateHost(int64_t bytes) = 0;

  // Whether PackLinear takes sources with a reader (LinearSource::reader). If so, PackLinear calls
  // the reader on several threads, the caller's included. Packed weights are then in main memory,
  // and Embed can read their rows: a matrix that is also the token table is kept only once.
  virtual bool packs_while_reading() const { return false; }

  // Whether PackLinear takes matrices of this format. Any thread.
  virtual bool CanMultiply(WeightFormat format) const { return !IsQuantized(format); }

  // Returns how many bytes the packed matrix of a source takes, without its bias. Does not read the
  // weights. The default, the size of the source's parts, is an estimate.
  virtual int64_t PackedBytes(const LinearSource& source) const {
    int64_t bytes = 0;
    for (const MatrixView& part : source.parts) {
      bytes += part.rows * RowBytes(part);
    }
    return bytes;
  }

  // Copies weights into the order that the backend's kernels read. Errors: kInvalidArgument, as
  // CheckLinearSource; kResourceExhausted if memory is lacking; the errors of LinearSource::reader.
  // REQUIRES: CanMultiply(format) of each part.
  virtual absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) = 0;

  // Allocates all memory that operations and transfers of inputs need in steps within these bounds,
  // so that no such step allocates. Keeps earlier allocations that are large enough. A step beyond
  // the bounds still runs, but allocates; if a GPU then lacks memory, the process ends.
  // Errors: kResourceExhausted, reason MEMORY. REQUIRES: weights are packed.
  virtual absl::Status ReserveForSteps(const StepBounds& /*bounds*/) { return absl::OkStatus(); }

  // Upper bound on the device memory of recorded steps (RunStep). This memory comes on top of what
  // the functions above allocate.
  virtual int64_t max_record_bytes() const { return 0; }
  // Returns the batch sizes (numbers of sequences) for which the backend wants to record steps
  // before the first step of an epoch. Each of these steps must run twice, with padding rows only,
  // in the order of the result. Empty if the backend records no steps.
  virtual std::vector<int32_t> BatchesToRecord(int32_t /*max_seqs*/) const { return {}; }

  // Takes the next step's inputs from host arrays and returns arrays that operations can read. The
  // returned arrays are valid until the next BeginStep. They may have additional padding rows:
  // tokens with slot -1, sequences with length 0. Padding changes no other row. All rows of `host`
  // may be padding.
  virtual StepInputs BeginStep(const StepInputs& host) = 0;
  // Whether BeginStep takes so long that an early call with predicted inputs pays off. A later
  // BeginStep replaces wrong predictions. Any thread.
  virtual bool begins_ahead() const { return false; }
  // Says that the next RunStep will be called with this function, unless another BeginStep comes
  // first. A backend may call the function to learn the operations' parameters. REQUIRES: as for
  // RunStep.
  virtual void AnnounceOperations(const std::function<void()>& /*operations*/) {}
  // Runs the operations that the function calls, on the inputs of the last BeginStep. A backend may
  // call the function several times, to learn the operations' parameters and to record the
  // operations. A backend that has a record with the same parameters may replay the record instead.
  // REQUIRES: the function does not transfer, sample or copy blocks, and reads no results.
  virtual void RunStep(const std::function<void()>& operations) = 0;

  // Waits until all operations are done. Asynchronous backends override this function.
  virtual void WaitForOperations() {}

  virtual void Embed(const EmbeddingParams& params) = 0;
  virtual void Norm(const NormParams& params) = 0;
  virtual void Linear(const LinearParams& params) = 0;
  virtual void Activate(const ActivationParams& params) = 0;
  // A backend may override this function by a faster one that gives the same bits.
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
  // The block ids are in host memory.
  virtual void CopyBlocks(const CopyBlocksParams& params) = 0;

  // Starts a transfer that runs after all earlier operations. Later operations may run before the
  // transfer is done, so callers must call OrderAfter before an operation touches the transfer's
  // blocks. Transfers of one direction run in the order of their calls.
  virtual TransferId StartTransfer(const BlockTransferParams& params) = 0;
  // Orders all later operations and transfers after this transfer.
  virtual void OrderAfter(TransferId transfer) = 0;
  // Returns the highest id up to which all transfers are done; 0: none. Does not wait.
  virtual TransferId TransfersDone() = 0;
  virtual void WaitForTransfers() = 0;

  // Says that the next step's logits will be sampled with these rows, so that a backend can sample
  // as part of the step. Only Sample returns the tokens. The rows must not change until the next
  // call of Sample or AnnounceSampling.
  virtual void AnnounceSampling(std::span<const SamplingRow> /*rows*/) {}
  virtual void Sample(const SampleParams& params) = 0;

  // Sets the group of ranks for AllReduce, Gather and Broadcast. Null: this rank leaves its group.
  virtual absl::Status JoinGroup(std::shared_ptr<Communicator> group) = 0;
  // REQUIRES, also for Gather and Broadcast: this rank has joined a group.
  virtual void AllReduce(const AllReduceParams& params) = 0;
  virtual void Gather(const GatherParams& params) = 0;
  // Copies rank 0's bytes to all ranks, in host memory. Waits for all earlier operations.
  virtual void Broadcast(std::span<std::byte> data) = 0;

  // Returns a counter that grows while operations run and stops if they are stuck. On a CPU it
  // counts finished parts of operations. On a GPU it counts submitted operations, including those
  // that still wait in a queue. Any thread; the counter may lag a little.
  virtual uint64_t progress() const = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_API_KERNEL_BACKEND_H_
