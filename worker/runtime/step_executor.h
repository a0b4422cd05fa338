// StepExecutor is the worker without its wire: it owns the KV pool, the host pool and the sequence
// table and executes plans in the order in which they were numbered.
//
// One step: check everything, start swaps, copy blocks, introduce sequences, build the batch, run
// the model, sample, release. A step that is refused has changed nothing.
//
// Thread safety: one caller at a time (the executor thread), except where it says otherwise.
// Errors:        those of StepOrder and StepPlanChecker.
// Source:        PagedAttention, Kwon et al. 2023, section 4.6.
#ifndef QUIRE_WORKER_RUNTIME_STEP_EXECUTOR_H_
#define QUIRE_WORKER_RUNTIME_STEP_EXECUTOR_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/mutex.h"
#include "common/model/kv_cache_spec.h"
#include "common/step/kv_memory.h"
#include "common/step/step_limits.h"
#include "common/step/step_plan.h"
#include "common/step/step_plan_check.h"
#include "common/step/step_result.h"
#include "kernels/api/kernel_backend.h"
#include "kernels/collective/peer_listener.h"
#include "worker/kv_cache/block_mover.h"
#include "worker/kv_cache/kv_cache_storage.h"
#include "worker/kv_cache/kv_windows.h"
#include "worker/model/batch.h"
#include "worker/model/model.h"
#include "worker/runtime/batch_builder.h"
#include "worker/runtime/fail_points.h"
#include "worker/runtime/sampler.h"
#include "worker/runtime/sequence_table.h"
#include "worker/runtime/step_observer.h"
#include "worker/runtime/step_order.h"

namespace quire {

// What a scheduler agrees on with a worker when an epoch begins.
struct EpochParams {
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;
  StepLimits limits;  // vocab_size is the model's; what is given here is not read
  DType kv_cache_dtype = DType::kF32;
  std::string group_secret = {};             // of several ranks
  uint64_t num_aborts = 0;                   // StepExecutor::num_aborts, before the epoch was taken
  std::vector<std::string> rendezvous = {};  // by rank
};

// How large the KV pool and the host pool may be, and how the KV pool is read.
struct KvCacheBudget {
  int64_t bytes = 0;
  int64_t swap_space_bytes = 0;
  int32_t num_blocks_override = 0;  // > 0: this many blocks, if they take no more than the next
  int64_t most_bytes = std::numeric_limits<int64_t>::max();
  KvBackend backend = KvBackend::kPaged;
};

class StepExecutor {
 public:
  // All of these must outlive the executor; the backend is the model's. No fail-points: no step
  // fails on purpose. Peers: where the other ranks find this one, where there are others. No
  // observer: nobody hears.
  StepExecutor(Model& model,
               KernelBackend& backend,
               const KvCacheBudget& budget,
               FailPoints* fail_points = nullptr,
               PeerListener* peers = nullptr,
               StepObserver* observer = nullptr);

  // Called on the thread that calls everything below, where it is not the one that made the
  // backend.
  void BindThread() { backend_.BindThread(); }

  // From here to MaxHostBlocks: any thread, at any time.

  // The cache geometry of this rank. Errors: kInvalidArgument, reason STEP_LIMITS, for a block
  // size that is no power of two in [1, kMaxBlockSizeTokens] and a type that the backend cannot
  // store.
  absl::StatusOr<KvCacheSpec> SpecFor(int32_t block_size_tokens, DType dtype) const;

  // The model's stored type where the backend can store keys and values so, else its activations'
  // type.
  DType DefaultKvCacheDtype() const;

  // Bytes of one block as the backend lays it out, with what fills its last page under windows.
  int64_t BlockBytes(const KvCacheSpec& spec) const;
  // How blocks are kept; of places only how many may be shown (see num_places).
  KvMemory MemoryOf(const KvCacheSpec& spec) const;

  // Blocks that the budget allows, the null block included, at most kMaxBlocksLimit; 0 when not
  // even one fits.
  int32_t MaxBlocks(const KvCacheSpec& spec) const;
  // That there is memory for the blocks of an override. Errors: kResourceExhausted, reason MEMORY.
  absl::Status CheckOverride(const KvCacheSpec& spec) const;
  // Blocks that the swap space holds, at most kMaxBlocksLimit.
  int32_t MaxHostBlocks(const KvCacheSpec& spec) const;

  // As of KernelBackend.
  int32_t full_step_tokens() const { return backend_.full_step_tokens(); }

  // Whether plans are to name blocks that come next: windows map them ahead.
  bool wants_next_blocks() const { return budget_.backend == KvBackend::kVmm; }

  // Where other ranks find this one; "" where there are none.
  std::string rendezvous() const { return peers_ == nullptr ? "" : peers_->rendezvous(); }

  // Whatever waits for another rank goes on without it: the step under way fails and its epoch is
  // left.
  void AbortGroup();
  // Calls of it. An epoch whose params have an older number does not wait for other ranks.
  uint64_t num_aborts() const { return peers_ == nullptr ? 0 : peers_->num_aborts(); }

  // Not these: one thread. What the pools of an epoch take, as far as the budget allows; 0 for one
  // that cannot be.
  int64_t PoolBytes(const EpochParams& params) const;

  // Forgets all sequences, takes the pools and the workspace of the largest step, and waits for
  // step 1; of several ranks, when all of them have met. A refusal changes nothing, except that
  // without memory for the new pools the old ones are given up: then steps are refused too. Errors:
  // those of StepOrder::CheckEpoch; kInvalidArgument, reason STEP_LIMITS;
  // kResourceExhausted, reason MEMORY, for more blocks than MaxBlocks and MaxHostBlocks, and for
  // memory that there is not; those of PeerListener::Connect.
  absl::Status BeginEpoch(const EpochParams& params);

  // The result is valid until the next call. Errors: also kUnavailable, reason GROUP_BROKEN, when
  // another rank was lost in the step, which ends the epoch. REQUIRES: plan.digest is
  // DigestOf(plan).
  absl::StatusOr<const StepResult*> Execute(const StepPlan& plan);

  // What Execute gave was sent to the scheduler.
  void WhenAnswered() const;

  // Places of windows that show something.
  int64_t num_places() const { return windows_ == nullptr ? 0 : windows_->num_mapped(); }

  const StepOrder& order() const { return order_; }
  const Model& model() const { return model_; }
  // Null before the first epoch.
  const SequenceTable* sequences() const { return sequences_.get(); }

 private:
  absl::Status TryBeginEpoch(const EpochParams& params);
  absl::Status CheckLimits(const StepLimits& limits, const KvCacheSpec& spec) const;
  absl::Status TakePools(const KvCacheSpec& spec, const StepLimits& limits);
  absl::Status TakePool(const KvCacheSpec& spec, const StepLimits& limits);
  absl::Status TakeWindows(const StepLimits& limits);
  KvCacheLayout LayoutFor(const KvCacheSpec& spec) const;
  absl::Status MeetRanks(const EpochParams& params);
  // Null for one rank. Valid until the next epoch.
  const Communicator* Group() const;
  WorkerHoldings Holdings() const;

  void Introduce(const SequenceIntroduction& introduction);
  // Fills slices_ and appends the new blocks.
  void Schedule(const std::vector<SequenceSlice>& slices);
  // Has windows show the blocks of slices_ where there are windows, and tells what that took.
  BlockLookup LookUpBlocks(const StepPlan& plan, ExecutedStep* step);
  // Has those mapped, beside the step, that slices will probably get next.
  void ExpectBlocks(const std::vector<SequenceSlice>& slices);
  // Whether the windows show all blocks of the slices.
  bool ShowWindows();
  // What was computed and sampled becomes known.
  void Commit(const std::vector<SampledToken>& sampled);

  Model& model_;
  KernelBackend& backend_;
  const KvCacheBudget budget_;
  FailPoints* const fail_points_;
  PeerListener* const peers_;
  StepObserver* const observer_;

  mutable Mutex group_mutex_;
  std::shared_ptr<Communicator> group_ ABSL_GUARDED_BY(group_mutex_);  // null for one rank

  StepOrder order_;
  std::unique_ptr<StepPlanChecker> checker_;  // of this epoch
  std::unique_ptr<SequenceTable> sequences_;  // of this epoch
  std::unique_ptr<KvCacheStorage> storage_;
  std::unique_ptr<BlockMover> mover_;   // on storage_; null means that there are no pools
  std::unique_ptr<KvWindows> windows_;  // on storage_; of this epoch; null: attention reads tables
  KvCacheSpec spec_;
  Sampler sampler_;

  // Scratch, reused from step to step.
  std::vector<ScheduledSlice> slices_;
  Batch batch_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_STEP_EXECUTOR_H_
