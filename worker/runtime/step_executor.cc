#include "worker/runtime/step_executor.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/math.h"
#include "common/base/status_macros.h"
#include "common/model/rope_config.h"

namespace quire {
namespace {

// Upper bound on the wait until the other ranks connect. All ranks get BeginEpoch at the same time,
// but a rank that must first allocate its pools connects later than the others.
constexpr int64_t kMeetTimeout = 10 * kNanosPerSecond;

// Returns the time spent so far in operations with other ranks.
int64_t CollectiveNanos(const Communicator* group) {
  return group == nullptr ? 0 : group->busy_nanos();
}

StepTimings TimingsOf(const ExecutedStep& step) {
  const int64_t collective_ns = step.forward_collective_ns + step.sample_collective_ns;
  return {.build_us = step.build_ns / kNanosPerMicro,
          .forward_us = step.forward_ns / kNanosPerMicro,
          .sample_us = step.sample_ns / kNanosPerMicro,
          .collective_us = collective_ns / kNanosPerMicro};
}

}  // namespace

StepExecutor::StepExecutor(Model& model,
                           KernelBackend& backend,
                           const KvCacheBudget& budget,
                           FailPoints* fail_points,
                           PeerListener* peers,
                           StepObserver* observer)
    : model_(model),
      backend_(backend),
      sizing_(model, backend, budget),
      fail_points_(fail_points),
      peers_(peers),
      observer_(observer),
      sampler_(backend, model.config().vocab_size, model.share()),
      scorer_(model, backend) {}

absl::Status StepExecutor::CheckLimits(const StepLimits& limits, const KvCacheSpec& spec) const {
  QUIRE_RETURN_IF_ERROR(Validate(limits));
  QUIRE_RETURN_IF_ERROR(CheckMessageFits(limits));
  int32_t max_positions = model_.config().max_position_embeddings;
  if (limits.max_model_len > max_positions) {
    return InvalidArgument(
        "STEP_LIMITS",
        absl::StrCat("max_model_len_tokens: must be at most max_position_embeddings (got ",
                     limits.max_model_len,
                     ", limit ",
                     max_positions,
                     ")"));
  }
  const int32_t window = WindowOfAllLayers(model_.config());
  if (limits.sliding_window != 0 && limits.sliding_window != window) {
    return InvalidArgument(
        "STEP_LIMITS",
        absl::StrCat("sliding_window_tokens: must be the window of all layers or 0 (got ",
                     limits.sliding_window,
                     ", window ",
                     window,
                     ")"));
  }
  return sizing_.CheckBlocks(limits, spec);
}

absl::Status StepExecutor::CheckRopeLength(int32_t length) const {
  const ModelConfig& config = model_.config();
  const int32_t longest = RopeLength(config.rope, config.max_position_embeddings);
  if (length > longest || length != RopeLength(config.rope, length)) {
    return InvalidArgument(
        "STEP_LIMITS",
        absl::StrCat("rope_length_tokens: not a length of the model's RoPE (got ",
                     length,
                     ", longest ",
                     longest,
                     ")"));
  }
  return absl::OkStatus();
}

absl::Status StepExecutor::AllocatePools(const KvCacheSpec& spec, const StepLimits& limits) {
  if (mover_ != nullptr) {
    mover_->BeginEpoch();
  }
  windows_.reset();
  QUIRE_RETURN_IF_ERROR(AllocatePool(spec, limits));
  if (mover_ == nullptr || mover_->num_host_blocks() != limits.num_host_blocks) {
    mover_.reset();
    QUIRE_ASSIGN_OR_RETURN(mover_,
                           BlockMover::Create(backend_, storage_->view(), limits.num_host_blocks));
  }
  if (storage_->windows() == nullptr) {
    return absl::OkStatus();
  }
  absl::Status status = TakeWindows(limits);
  if (!status.ok()) {
    // The epoch cannot begin without its windows. While mover_ is null, Execute refuses every step.
    mover_.reset();
  }
  return status;
}

absl::Status StepExecutor::TakeWindows(const StepLimits& limits) {
  QUIRE_ASSIGN_OR_RETURN(windows_,
                         KvWindows::Create(backend_,
                                           *storage_->windows(),
                                           limits.max_sequences,
                                           NumBlocksAtMaxModelLen(limits),
                                           sizing_.BlocksPerPage(spec_)));
  return absl::OkStatus();
}

absl::Status StepExecutor::AllocatePool(const KvCacheSpec& spec, const StepLimits& limits) {
  const int32_t num_blocks = limits.num_blocks;
  QUIRE_ASSIGN_OR_RETURN(const int64_t num_places, sizing_.NumPlaces(limits, spec));
  bool fits = storage_ != nullptr && spec == spec_ && storage_->view().num_blocks == num_blocks &&
              storage_->num_places() == num_places;
  if (fits && storage_->Clear().ok()) {
    return absl::OkStatus();
  }
  const KvCacheLayout layout = sizing_.LayoutFor(spec);
  const int32_t blocks_per_page = sizing_.BlocksPerPage(spec);
  const auto create = [&] {
    return KvCacheStorage::Create(backend_, layout, num_blocks, num_places, blocks_per_page);
  };
  auto storage = create();
  if (absl::IsResourceExhausted(storage.status())) {
    // A GPU may lack room for the old and the new pool together, so free the old one first.
    mover_.reset();
    storage_.reset();
    storage = create();
  }
  QUIRE_RETURN_IF_ERROR(storage.status());
  mover_.reset();
  storage_ = *std::move(storage);
  spec_ = spec;
  return absl::OkStatus();
}

absl::Status StepExecutor::BeginEpoch(const EpochParams& params) {
  absl::Status begun = TryBeginEpoch(params);
  if (observer_ != nullptr) {
    WorkerPools pools;
    if (mover_ != nullptr) {
      pools = {.block_bytes = mover_->pool().layout.block_bytes(),
               .padding_bytes = sizing_.MemoryOf(spec_).padding_bytes,
               .max_places = windows_ == nullptr ? 0 : windows_->max_mapped(),
               .num_blocks = mover_->pool().num_blocks,
               .num_host_blocks = mover_->num_host_blocks()};
    }
    observer_->OnEpoch({.has_begun = begun.ok(),
                        .scheduler_incarnation = order_.scheduler_incarnation(),
                        .group_epoch = order_.group_epoch(),
                        .pools = pools,
                        .holdings = Holdings()});
  }
  return begun;
}

absl::Status StepExecutor::TryBeginEpoch(const EpochParams& params) {
  QUIRE_RETURN_IF_ERROR(order_.CheckEpoch(params.scheduler_incarnation, params.group_epoch));
  // The code below may move or free the memory of prepared inputs and the pools, even if it fails.
  predicted_.clear();
  is_prepared_ = false;
  StepLimits limits = params.limits;
  limits.vocab_size = model_.config().vocab_size;
  QUIRE_ASSIGN_OR_RETURN(KvCacheSpec spec,
                         sizing_.SpecFor(limits.block_size_tokens, params.kv_cache_dtype));
  QUIRE_RETURN_IF_ERROR(CheckLimits(limits, spec));
  QUIRE_RETURN_IF_ERROR(CheckRopeLength(params.rope_length));
  model_.FixRope(params.rope_length);
  QUIRE_RETURN_IF_ERROR(ReserveForSteps(limits));
  QUIRE_RETURN_IF_ERROR(AllocatePools(spec, limits));
  absl::Status status = MeetRanks(params);
  if (status.ok()) {
    model_.RecordSteps(limits.max_sequences, storage_->view());
    const Communicator* const group = Group();
    status = group == nullptr ? absl::OkStatus() : group->status();
  }
  if (!status.ok()) {
    // AllocatePools cleared or freed the pool of the old epoch, so the old epoch cannot go on.
    order_.LeaveEpoch();
    return status;
  }
  limits_ = limits;
  checker_ = std::make_unique<StepPlanChecker>(limits);
  sequences_ = std::make_unique<SequenceTable>(limits.max_sequences, limits.num_blocks);
  order_.BeginEpoch(params.scheduler_incarnation, params.group_epoch);
  return absl::OkStatus();
}

absl::Status StepExecutor::ReserveForSteps(const StepLimits& limits) {
  const StepBounds bounds = {.max_tokens = limits.max_tokens_per_step,
                             .max_seqs = limits.max_sequences,
                             .max_context_tokens = limits.max_model_len,
                             .max_blocks_per_seq = NumBlocksAtMaxModelLen(limits)};
  absl::Status status = model_.Reserve(bounds);
  if (absl::IsResourceExhausted(status) && storage_ != nullptr) {
    // The old epoch's pool may take the missing memory, so free it and try again.
    FreePools();
    status = model_.Reserve(bounds);
  }
  if (!status.ok()) {
    // The failed attempt has freed memory of the old epoch, so the old epoch cannot go on either.
    order_.LeaveEpoch();
  }
  return status;
}

void StepExecutor::FreePools() {
  windows_.reset();
  mover_.reset();
  storage_.reset();
}

absl::Status StepExecutor::MeetRanks(const EpochParams& params) {
  const RankShare& share = model_.share();
  if (share.is_whole()) {
    return absl::OkStatus();
  }
  if (static_cast<int32_t>(params.rendezvous.size()) != share.size) {
    return InvalidArgument("RENDEZVOUS",
                           absl::StrCat("rendezvous: must have an address for each rank (got ",
                                        params.rendezvous.size(),
                                        ", ranks ",
                                        share.size,
                                        ")"));
  }
  QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> group,
                         peers_->Connect({.rank = share.rank,
                                          .scheduler_incarnation = params.scheduler_incarnation,
                                          .group_epoch = params.group_epoch,
                                          .secret = params.group_secret,
                                          .rendezvous = params.rendezvous},
                                         kMeetTimeout,
                                         params.num_aborts));
  {
    const MutexLock lock(group_mutex_);
    group_ = group;
  }
  return backend_.JoinGroup(std::move(group));
}

void StepExecutor::AbortGroup() {
  if (peers_ != nullptr) {
    peers_->Abort();
  }
  const MutexLock lock(group_mutex_);
  if (group_ != nullptr) {
    group_->Abort();
  }
}

const Communicator* StepExecutor::Group() const {
  const MutexLock lock(group_mutex_);
  return group_.get();
}

WorkerHoldings StepExecutor::Holdings() const {
  return {.num_sequences = sequences_ == nullptr ? 0 : sequences_->num_sequences(),
          .num_blocks = sequences_ == nullptr ? 0 : sequences_->num_blocks(),
          .num_host_blocks = mover_ == nullptr ? 0 : mover_->num_filled_host_blocks(),
          .num_places = num_places()};
}

absl::StatusOr<const StepResult*> StepExecutor::Execute(const StepPlan& plan) {
  Instant begin = SteadyNow();
  QUIRE_ASSIGN_OR_RETURN(StepOrder::Verdict verdict, order_.Classify(plan.header, plan.digest));
  if (verdict == StepOrder::Verdict::kReplay) {
    return &order_.last_result();
  }
  if (mover_ == nullptr) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "MEMORY",
                 "step: the worker has no pools, because allocating the last ones failed");
  }
  QUIRE_RETURN_IF_ERROR(
      checker_->Check(plan, [this](SequenceHandle handle) { return sequences_->View(handle); }));

  // From here on the plan takes effect, so the code below must not refuse it.
  const bool was_prepared = TakePrepared(plan);
  const int64_t swap_before = mover_->busy_nanos();
  mover_->SwapOut(plan.swap_outs, plan.header.step_id);
  std::vector<BlockId> failed_swap_ins = mover_->SwapIn(plan.swap_ins, plan.header.step_id);
  mover_->Copy(plan.copies);
  for (const SequenceIntroduction& introduction : plan.introductions) {
    Introduce(introduction);
  }
  Schedule(plan.slices);
  ExecutedStep step = {.was_prepared = was_prepared};
  if (!was_prepared) {
    BuildBatchOf(plan, &step);
  }
  StepResult result{.header = plan.header,
                    .plan_digest = plan.digest,
                    .failed_swap_ins = std::move(failed_swap_ins)};
  if (fail_points_ != nullptr) {
    fail_points_->BeforeStep(batch_.token_ids);
  }
  const Communicator* const group = Group();
  Instant built = SteadyNow();
  const int64_t collective_before = CollectiveNanos(group);
  if (!was_prepared && !slices_.empty()) {
    BeginBatch(slices_);
  }
  float* logits = slices_.empty() ? nullptr : model_.Run(batch_, storage_->view());
  result.row_hash = slices_.empty() ? 0 : model_.row_hash();
  Instant computed = SteadyNow();
  const int64_t collective_forward = CollectiveNanos(group);
  sampler_.Sample(slices_, logits, &result.sampled);
  scorer_.Score(slices_, limits_.max_sequences, &result.scored);
  if (windows_ != nullptr) {
    // The next step may remap addresses that running operations still read, so wait until these
    // operations have ended. Wait even if the group is broken: the next epoch remaps too.
    backend_.WaitForOperations();
  }
  if (absl::Status status = group == nullptr ? absl::OkStatus() : group->status(); !status.ok()) {
    // A broken collective leaves block contents undefined, so leave the epoch.
    order_.LeaveEpoch();
    return status;
  }
  Commit(result.sampled);
  for (SequenceHandle handle : plan.releases) {
    sequences_->Release(handle);
    if (windows_ != nullptr) {
      windows_->End(handle);
    }
  }
  if (backend_.begins_ahead() && windows_ == nullptr) {
    predicted_ = PredictNextStep(plan, slices_, *sequences_, limits_);
  }
  if (slices_.empty()) {
    // If the plan has no slices, the scheduler may send no further step until it knows that the
    // swaps are done. So finish the swaps now, and report them in this answer.
    mover_->FinishSwaps();
  }
  result.swaps_done_step_id = mover_->SwapsDone(plan.header.step_id);
  step.build_ns = built - begin;
  step.forward_ns = computed - built;
  step.sample_ns = SteadyNow() - computed;
  step.swap_ns = mover_->busy_nanos() - swap_before;
  step.forward_collective_ns = collective_forward - collective_before;
  step.sample_collective_ns = CollectiveNanos(group) - collective_forward;
  step.num_tokens = static_cast<int64_t>(batch_.token_ids.size());
  step.num_sampled = static_cast<int64_t>(result.sampled.size());
  step.num_swapped_out = static_cast<int64_t>(plan.swap_outs.size());
  step.num_swapped_in = static_cast<int64_t>(plan.swap_ins.size() - result.failed_swap_ins.size());
  step.num_failed_swap_ins = static_cast<int64_t>(result.failed_swap_ins.size());
  step.holdings = Holdings();
  result.timings = TimingsOf(step);
  if (observer_ != nullptr) {
    observer_->OnStep(step);
  }
  if (fail_points_ != nullptr) {
    fail_points_->AfterStep(&result.plan_digest);
  }
  order_.Complete(std::move(result));
  return &order_.last_result();
}

void StepExecutor::WhenAnswered() {
  PrepareNextStep();
  if (fail_points_ != nullptr) {
    fail_points_->WhenIdle();
  }
}

void StepExecutor::PrepareNextStep() {
  if (predicted_.empty() || is_prepared_) {
    return;
  }
  BuildBatch(predicted_, spec_.block_size_tokens, BlockLookup::kTables, &batch_);
  BeginBatch(predicted_);
  is_prepared_ = true;
}

bool StepExecutor::TakePrepared(const StepPlan& plan) {
  const bool is_prepared = std::exchange(is_prepared_, false) && IsPredicted(plan, predicted_);
  predicted_.clear();
  return is_prepared;
}

void StepExecutor::BuildBatchOf(const StepPlan& plan, ExecutedStep* step) {
  BuildBatch(slices_, spec_.block_size_tokens, LookUpBlocks(plan, step), &batch_);
  // A new sequence may begin with blocks that other sequences compute in this step.
  batch_.shares_new_tokens = std::any_of(
      plan.introductions.begin(), plan.introductions.end(), [](const SequenceIntroduction& each) {
        return each.num_computed_tokens > 0;
      });
}

// The backend samples as part of the step only if it knows the rows before the step begins.
void StepExecutor::BeginBatch(const std::vector<ScheduledSlice>& slices) {
  sampler_.Announce(slices);
  model_.Begin(batch_, storage_->view());
}

void StepExecutor::Introduce(const SequenceIntroduction& introduction) {
  sequences_->Introduce(introduction);
  if (windows_ != nullptr) {
    windows_->Begin(introduction.handle);
  }
}

void StepExecutor::Schedule(const std::vector<SequenceSlice>& slices) {
  slices_.clear();
  for (const SequenceSlice& slice : slices) {
    SequenceState* sequence = sequences_->Find(slice.handle);
    QUIRE_CHECK(sequence != nullptr);
    sequences_->Append(slice.new_block_ids, sequence);
    if (slice.forced_token_id.has_value()) {
      sequence->token_ids.back() = *slice.forced_token_id;
    }
    mover_->AwaitBlocks(sequence->block_ids);
    slices_.push_back(
        {.handle = slice.handle, .num_tokens = slice.num_tokens, .sequence = sequence});
  }
}

BlockLookup StepExecutor::LookUpBlocks(const StepPlan& plan, ExecutedStep* step) {
  if (windows_ == nullptr) {
    return BlockLookup::kTables;
  }
  const Instant begin = SteadyNow();
  const WindowCounts before = windows_->counts();
  const bool are_shown = ShowWindows();
  if (are_shown) {
    MapNextBlocks(plan);
  }
  const WindowCounts& now = windows_->counts();
  step->windows = {.num_found = now.num_found - before.num_found,
                   .num_mapped = now.num_mapped - before.num_mapped,
                   .num_mapped_ahead = now.num_mapped_ahead - before.num_mapped_ahead,
                   .num_taken_down = now.num_taken_down - before.num_taken_down,
                   .was_refused = !are_shown};
  step->map_ns = SteadyNow() - begin;
  return are_shown ? BlockLookup::kWindows : BlockLookup::kTables;
}

void StepExecutor::MapNextBlocks(const StepPlan& plan) {
  // The running step reads the windows of its slices, so the spare window must not be one of them.
  bool is_spare_unread = true;
  for (const SequenceSlice& slice : plan.slices) {
    if (slice.next_block_id.has_value()) {
      windows_->Expect(slice.handle, *slice.next_block_id);
    }
    is_spare_unread = is_spare_unread && slice.handle != plan.spare.handle;
  }
  if (is_spare_unread && !plan.spare.block_ids.empty()) {
    windows_->ExpectBeginning(plan.spare.handle, plan.spare.block_ids);
  }
  windows_->StartAhead();
}

bool StepExecutor::ShowWindows() {
  for (ScheduledSlice& slice : slices_) {
    const SequenceState& sequence = *slice.sequence;
    const int32_t num_blocks =
        DivCeil(sequence.num_computed_tokens + slice.num_tokens, spec_.block_size_tokens);
    if (!windows_->Show(slice.handle,
                        std::span(sequence.block_ids).first(static_cast<size_t>(num_blocks)))) {
      return false;
    }
    slice.first_place = windows_->FirstBlockPlace(slice.handle);
  }
  return true;
}

void StepExecutor::Commit(const std::vector<SampledToken>& sampled) {
  size_t next = 0;
  for (const ScheduledSlice& slice : slices_) {
    bool is_sampled = slice.is_sampled();
    slice.sequence->num_computed_tokens += slice.num_tokens;
    if (is_sampled) {
      slice.sequence->token_ids.push_back(sampled[next++].token_id);
    }
  }
}

}  // namespace quire
