// StepExecutor is the worker without its wire protocol: it owns the KV pool, the host pool and the
// sequence table, and executes plans in the order of their step ids.
//
// One step: check the plan, start swaps, copy blocks, add new sequences, build the batch, run the
// model, sample, release ended sequences. A refused step changes nothing.
//
// Thread safety: one caller at a time (the executor thread), except where a comment says otherwise.
// Errors:        those of StepOrder and StepPlanChecker.
// Source:        PagedAttention, Kwon et al. 2023, section 4.6.
#ifndef QUIRE_WORKER_RUNTIME_STEP_EXECUTOR_H_
#define QUIRE_WORKER_RUNTIME_STEP_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/mutex.h"
#include "common/model/kv_cache_spec.h"
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
#include "worker/runtime/kv_pool_sizing.h"
#include "worker/runtime/next_step.h"
#include "worker/runtime/prompt_scorer.h"
#include "worker/runtime/sampler.h"
#include "worker/runtime/sequence_table.h"
#include "worker/runtime/step_observer.h"
#include "worker/runtime/step_order.h"

namespace quire {

// Parameters of an epoch: a series of steps, numbered from 1, of the scheduler that begins it.
struct EpochParams {
  uint64_t scheduler_incarnation = 0;
  uint64_t group_epoch = 0;
  StepLimits limits;  // vocab_size is ignored; the model's vocabulary is used
  DType kv_cache_dtype = DType::kF32;
  int32_t rope_length = 0;        // RopeLength of the model (common/model/rope_config.h)
  std::string group_secret = {};  // used with several ranks only
  // StepExecutor::num_aborts(), read before the scheduler's claim was checked (SchedulerClaim), so
  // that BeginEpoch notices every AbortGroup call since then.
  uint64_t num_aborts = 0;
  // By rank: the address that other ranks dial to reach that rank.
  std::vector<std::string> rendezvous = {};
};

class StepExecutor {
 public:
  // All arguments except the budget must outlive the executor. backend: the backend that loaded the
  // model. fail_points: null if no step fails on purpose. peers: the listener for the other ranks;
  // null with one rank. observer: may be null.
  StepExecutor(Model& model,
               KernelBackend& backend,
               const KvCacheBudget& budget,
               FailPoints* fail_points = nullptr,
               PeerListener* peers = nullptr,
               StepObserver* observer = nullptr);

  // Binds the calling thread to the device. REQUIRES: called on the executor thread before any step
  // or epoch, unless that thread created the backend.
  void BindThread() { backend_.BindThread(); }

  // The methods from here to num_aborts may be called from any thread at any time.

  const KvPoolSizing& sizing() const { return sizing_; }

  // See KernelBackend::full_step_tokens.
  int32_t full_step_tokens() const { return backend_.full_step_tokens(); }

  // Returns true if plans should name each sequence's probable next block. The block can then be
  // mapped into the sequence's window (kv_windows.h) before it is needed, or the next step's inputs
  // can be prepared (next_step.h).
  bool wants_next_blocks() const { return sizing_.has_windows() || backend_.begins_ahead(); }

  // The address that other ranks dial; "" with one rank.
  std::string rendezvous() const { return peers_ == nullptr ? "" : peers_->rendezvous(); }

  // Ends every wait for another rank. A step in progress fails, and its epoch ends.
  void AbortGroup();
  // Number of AbortGroup calls so far. BeginEpoch does not wait for other ranks if AbortGroup was
  // called after params.num_aborts was read.
  uint64_t num_aborts() const { return peers_ == nullptr ? 0 : peers_->num_aborts(); }

  // The methods below may be called only from the executor thread, except model().

  // Forgets all sequences, allocates the pools and the workspace of the largest step, connects to
  // the other ranks, and expects step 1. A refusal changes nothing, with two exceptions. If memory
  // for the new pools is missing, the old epoch can lose its windows, host blocks or pools. If the
  // ranks do not connect, the old epoch ends. Without pools or epoch all steps are refused until an
  // epoch begins. Errors: those of StepOrder::CheckEpoch; kInvalidArgument, reason STEP_LIMITS or
  // RENDEZVOUS; kResourceExhausted, reason MEMORY, for more blocks than MaxBlocks or MaxHostBlocks
  // allows, and if memory runs out; those of PeerListener::Connect.
  absl::Status BeginEpoch(const EpochParams& params);

  // Executes a step, or returns the kept result if the plan repeats the last step. The result is
  // valid until the next call. Errors: those of StepOrder and StepPlanChecker; kFailedPrecondition,
  // reason MEMORY, if there are no pools; kUnavailable, reason GROUP_BROKEN, if another rank was
  // lost during the step. A lost rank ends the epoch. REQUIRES: plan.digest is DigestOf(plan).
  absl::StatusOr<const StepResult*> Execute(const StepPlan& plan);

  // Prepares the predicted next step, and runs the fail-points of an idle worker. REQUIRES: the
  // last step's result was handed to the scheduler's stream.
  void WhenAnswered();

  // Number of blocks mapped into windows (kv_windows.h). A block mapped twice counts twice.
  int64_t num_places() const { return windows_ == nullptr ? 0 : windows_->num_mapped(); }

  const StepOrder& order() const { return order_; }
  const Model& model() const { return model_; }
  // Null before the first epoch.
  const SequenceTable* sequences() const { return sequences_.get(); }

 private:
  absl::Status TryBeginEpoch(const EpochParams& params);
  absl::Status CheckLimits(const StepLimits& limits, const KvCacheSpec& spec) const;
  absl::Status CheckRopeLength(int32_t length) const;
  // Makes the model allocate the memory of all steps within the limits. If there is too little,
  // frees the pools of the old epoch and tries again.
  absl::Status ReserveForSteps(const StepLimits& limits);
  void FreePools();
  absl::Status AllocatePools(const KvCacheSpec& spec, const StepLimits& limits);
  absl::Status AllocatePool(const KvCacheSpec& spec, const StepLimits& limits);
  absl::Status TakeWindows(const StepLimits& limits);
  absl::Status MeetRanks(const EpochParams& params);
  // Returns the epoch's communicator, valid until the next epoch; null with one rank.
  const Communicator* Group() const;
  WorkerHoldings Holdings() const;

  // Hands the batch of the predicted next step to the model, if there is a prediction.
  void PrepareNextStep();
  // Returns true if batch_ is the plan's batch, as predicted, and the model has begun it. Drops the
  // prediction.
  bool TakePrepared(const StepPlan& plan);
  // Builds batch_ from slices_. REQUIRES: slices_ are the plan's slices.
  void BuildBatchOf(const StepPlan& plan, ExecutedStep* step);
  // Hands batch_, the batch of `slices`, to the model.
  void BeginBatch(const std::vector<ScheduledSlice>& slices);
  void Introduce(const SequenceIntroduction& introduction);
  // Fills slices_. Appends each slice's new blocks to its sequence.
  void Schedule(const std::vector<SequenceSlice>& slices);
  // If the epoch has windows (kv_windows.h), maps the blocks of slices_ into the windows. Records
  // counts and time of the mapping in `step`. Returns how attention finds the blocks.
  BlockLookup LookUpBlocks(const StepPlan& plan, ExecutedStep* step);
  // Starts to map the blocks that the plan names as the sequences' probable next ones, and as the
  // probable first ones of the next new sequence. The mapping goes on while the step runs.
  void MapNextBlocks(const StepPlan& plan);
  // Maps the blocks of slices_ into windows. Returns false if not all blocks can be mapped.
  bool ShowWindows();
  // Marks the slices' tokens as computed and appends the sampled tokens to their sequences.
  void Commit(const std::vector<SampledToken>& sampled);

  Model& model_;
  KernelBackend& backend_;
  const KvPoolSizing sizing_;
  FailPoints* const fail_points_;
  PeerListener* const peers_;
  StepObserver* const observer_;

  mutable Mutex group_mutex_;
  std::shared_ptr<Communicator> group_ ABSL_GUARDED_BY(group_mutex_);  // null for one rank

  StepOrder order_;
  std::unique_ptr<StepPlanChecker> checker_;  // for the limits of the current epoch
  std::unique_ptr<SequenceTable> sequences_;  // sequences of the current epoch
  std::unique_ptr<KvCacheStorage> storage_;
  std::unique_ptr<BlockMover> mover_;  // moves blocks of storage_; null if there are no pools
  // Windows of the current epoch; null: attention reads block tables.
  std::unique_ptr<KvWindows> windows_;
  KvCacheSpec spec_;
  Sampler sampler_;
  PromptScorer scorer_;
  StepLimits limits_;  // of the current epoch; the model has memory for max_sequences logits

  // Scratch, reused from step to step.
  std::vector<ScheduledSlice> slices_;
  Batch batch_;

  std::vector<ScheduledSlice> predicted_;  // slices of the next step; empty: no prediction
  bool is_prepared_ = false;  // batch_ is the batch of predicted_, and the model has begun it
};

}  // namespace quire

#endif  // QUIRE_WORKER_RUNTIME_STEP_EXECUTOR_H_
