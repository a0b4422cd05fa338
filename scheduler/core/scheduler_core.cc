#include "scheduler/core/scheduler_core.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "scheduler/core/admission.h"
#include "scheduler/core/core_state.h"
#include "scheduler/core/deadline_admission.h"
#include "scheduler/core/invariants.h"
#include "scheduler/core/output_processor.h"
#include "scheduler/core/pinned_prefixes.h"
#include "scheduler/core/step_planner.h"

namespace quire {
namespace {

std::vector<const BlockTable*> TablesInUse(const CoreState& state) {
  std::vector<const BlockTable*> tables;
  tables.reserve(state.running.size());
  for (const SequenceGroup* group : state.running) {
    for (const Sequence& sequence : group->sequences()) {
      if (sequence.is_running()) {
        tables.push_back(&sequence.table);
      }
    }
  }
  for (const auto& [id, prefix] : state.prefixes) {
    tables.push_back(&prefix.table);
  }
  return tables;
}

// Called when the block size has changed: blocks of another size hold other tokens, so every hash
// is stale.
void ForgetBlockHashes(CoreState& state) {
  for (auto& [id, group] : state.groups) {
    for (Sequence& sequence : group->sequences()) {
      sequence.block_hashes.clear();
    }
  }
  for (auto& [id, prefix] : state.prefixes) {
    prefix.block_hashes.clear();
  }
}

}  // namespace

SchedulerCore::SchedulerCore(const CoreConfig& config)
    : state_(std::make_unique<CoreState>(config)) {}

SchedulerCore::~SchedulerCore() = default;

void SchedulerCore::BeginEpoch(uint64_t scheduler_incarnation,
                               uint64_t group_epoch,
                               const StepLimits& limits,
                               bool after_crash) {
  QUIRE_CHECK(!state_->epoch.has_value());
  QUIRE_CHECK(limits.num_blocks > 0 && limits.block_size_tokens > 0 && limits.max_sequences > 0);
  QUIRE_CHECK(limits.max_tokens_per_step > 0 && limits.max_model_len > 0 && limits.vocab_size > 0);
  const bool were_limits_known = state_->last_limits.has_value();
  state_->JudgeLoss(after_crash);
  state_->epoch.emplace(scheduler_incarnation, group_epoch, limits);
  if (state_->keeps_cache_events) {
    state_->epoch->kv_cache.KeepCacheEvents();
    state_->has_lost_cache = true;  // reports kCleared again, for new subscribers
  }
  EndPrefixRequests(*state_);
  if (were_limits_known && state_->last_limits->block_size_tokens != limits.block_size_tokens) {
    ForgetBlockHashes(*state_);
  }
  state_->last_limits = limits;
  for (auto it = state_->groups.begin(); it != state_->groups.end();) {
    SequenceGroup& group = *(it++)->second;  // advance first: the group may leave the map
    if (!were_limits_known) {
      group.CutToContext(limits.max_model_len);
    }
    if (!FitsEver(group, limits)) {
      state_->FinishGroup(group, FinishReason::kNoCapacity);
    }
  }
  RestorePrefixes(*state_);
}

void SchedulerCore::OnWorkersLost() { state_->LoseWorkers(); }

AddOutcome SchedulerCore::AddRequest(Request request) {
  QUIRE_CHECK(!state_->last_request_id.has_value() || *state_->last_request_id < request.id);
  QUIRE_CHECK(!request.prompt_token_ids.empty() && !request.pins_prefix);
  QUIRE_CHECK(request.max_tokens >= 1 && request.num_sequences >= 1);
  QUIRE_CHECK(IsResumable(request));
  if (state_->last_limits.has_value()) {
    const StepLimits limits = state_->LimitsFor(request);
    if (!FitsContext(request.num_prompt_tokens(), limits)) {
      return AddOutcome::kTooLong;
    }
    CutToContext(limits.max_model_len, &request);
    if (request.num_tokens_at_most() > limits.max_model_len ||
        !FitsPool(request, request.num_live_sequences(), limits)) {
      return AddOutcome::kNeverFits;
    }
  }
  switch (state_->waiting.RefusalOf(request, state_->config, state_->last_limits)) {
    case WaitingQueue::Refusal::kFull:
      return AddOutcome::kQueueFull;
    case WaitingQueue::Refusal::kTokensFull:
      return AddOutcome::kQueueTokensFull;
    case WaitingQueue::Refusal::kTenantFull:
      return AddOutcome::kTenantFull;
    case WaitingQueue::Refusal::kNone:
      break;
  }
  const std::optional<DeadlineEstimate> estimate = AdmitByDeadline(*state_, request);
  if (!estimate.has_value()) {
    return AddOutcome::kDeadlineUnreachable;
  }
  state_->Add(std::move(request)).estimate = *estimate;
  return AddOutcome::kQueued;
}

bool SchedulerCore::AbortRequest(RequestId id) {
  SequenceGroup* group = state_->Find(id);
  if (group == nullptr || group->request().pins_prefix) {
    return false;
  }
  state_->FinishGroup(*group, FinishReason::kAborted);
  return true;
}

PinResult SchedulerCore::PinPrefix(RequestId id,
                                   std::vector<TokenId> token_ids,
                                   std::string cache_salt) {
  return quire::PinPrefix(*state_, id, std::move(token_ids), std::move(cache_salt));
}

bool SchedulerCore::UnpinPrefix(RequestId id) { return quire::UnpinPrefix(*state_, id); }

std::optional<PrefixInfo> SchedulerCore::FindPrefix(RequestId id) const {
  return quire::FindPrefix(*state_, id);
}

bool SchedulerCore::IsPoisonPrefix(RequestId id) const {
  return state_->poison_prefixes.contains(id);
}

std::vector<PrefixInfo> SchedulerCore::prefixes() const {
  std::vector<PrefixInfo> prefixes;
  for (const auto& [id, prefix] : state_->prefixes) {
    prefixes.push_back(*FindPrefix(id));
  }
  return prefixes;
}

bool SchedulerCore::FinishSequence(RequestId id, int32_t sequence_index) {
  SequenceGroup* group = state_->Find(id);
  if (group == nullptr || group->request().pins_prefix || group->is_beam_search() ||
      sequence_index < 0 || sequence_index >= group->request().num_sequences) {
    return false;
  }
  Sequence& sequence = group->sequences()[static_cast<size_t>(sequence_index)];
  if (sequence.is_finished()) {
    return false;
  }
  state_->FinishSequence(*group, sequence, FinishReason::kStop);
  return true;
}

std::optional<StepPlan> SchedulerCore::PlanStep(Instant now) {
  state_->started.clear();
  ExpireRequests(now);
  if (!state_->epoch.has_value()) {
    return std::nullopt;
  }
  return StepPlanner(*state_).Plan();
}

void SchedulerCore::ExpireRequests(Instant now) {
  state_->now = now;
  while (auto id = state_->deadlines.FirstExpired(now)) {
    SequenceGroup& group = *state_->Find(*id);
    bool has_run = group.is_running() || group.has_started();
    state_->FinishGroup(group,
                        has_run ? FinishReason::kExpiredRunning : FinishReason::kExpiredQueued);
  }
}

absl::Status SchedulerCore::ApplyStepResult(const StepResult& result) {
  absl::Status status = CheckResult(*state_, result);
  if (status.ok()) {
    ProcessResult(*state_, result);
  }
  return status;
}

std::vector<OutputEvent> SchedulerCore::TakeEvents() {
  size_t num_events = state_->events.size();
  std::vector<OutputEvent> events = std::exchange(state_->events, {});
  state_->events.reserve(num_events);  // the next step will probably have this many events again
  return events;
}

void SchedulerCore::KeepCacheEvents() {
  QUIRE_CHECK(!state_->epoch.has_value());
  state_->keeps_cache_events = true;
  state_->has_lost_cache = true;
}

std::vector<CacheEvent> SchedulerCore::TakeCacheEvents() {
  std::vector<CacheEvent> events;
  if (std::exchange(state_->has_lost_cache, false)) {
    events.push_back({.kind = CacheEvent::Kind::kCleared});
  }
  if (state_->epoch.has_value()) {
    std::ranges::move(state_->epoch->kv_cache.TakeCacheEvents(), std::back_inserter(events));
  }
  return events;
}

const std::vector<RequestId>& SchedulerCore::started() const { return state_->started; }

bool SchedulerCore::has_unanswered_plan() const { return state_->step.is_active; }

bool SchedulerCore::has_work() const {
  return state_->epoch.has_value() &&
         (!state_->groups.empty() || state_->epoch->kv_cache.has_swaps_under_way());
}

Instant SchedulerCore::next_deadline() const { return state_->deadlines.next(); }

CoreStats SchedulerCore::stats() const {
  CoreStats stats = state_->counters;
  stats.num_waiting_requests = state_->waiting.size();
  stats.num_running_requests = static_cast<int32_t>(state_->running.size());
  stats.num_swapped_requests = static_cast<int32_t>(state_->swapped.size());
  stats.num_queued_tokens = state_->waiting.num_tokens();
  stats.num_waiting_resumed_requests = state_->waiting.num_resumed();
  stats.num_queued_resumed_tokens = state_->waiting.num_resumed_tokens();
  stats.queue_drain_us = QueueDrainMicros(*state_);
  stats.num_suspects = static_cast<int32_t>(state_->suspects.suspects().size());
  if (state_->epoch.has_value()) {
    const KvCacheManager& kv_cache = state_->epoch->kv_cache;
    const KvCacheManager::Occupancy occupancy = kv_cache.CountTokens(TablesInUse(*state_));
    state_->AddBlockOperations(&stats);
    stats.block_size_tokens = kv_cache.block_size_tokens();
    stats.num_running_sequences = state_->epoch->handles.num_in_use();
    stats.num_blocks = kv_cache.pool().num_usable_blocks();
    stats.num_free_blocks = kv_cache.pool().num_free_blocks();
    stats.num_free_cached_blocks = kv_cache.pool().num_free_cached_blocks();
    stats.num_used_blocks = kv_cache.pool().num_used_blocks();
    stats.num_held_blocks = occupancy.num_held_blocks;
    stats.num_shared_blocks = kv_cache.pool().num_shared_blocks();
    stats.num_pending_blocks = kv_cache.pool().num_pending_blocks();
    stats.num_leaving_blocks = kv_cache.num_leaving_blocks();
    stats.num_host_blocks = kv_cache.host_pool().num_usable_blocks();
    stats.num_used_host_blocks = kv_cache.host_pool().num_used_blocks();
    stats.num_cached_blocks = kv_cache.num_cached_blocks();
    stats.num_stored_tokens = occupancy.num_stored_tokens;
    stats.num_table_tokens = kv_cache.num_stored_tokens();
    stats.num_table_blocks = occupancy.num_table_blocks;
    stats.num_pinned_blocks = kv_cache.num_pinned_blocks();
    stats.num_pinned_prefixes = static_cast<int32_t>(
        std::count_if(state_->prefixes.begin(), state_->prefixes.end(), [](const auto& entry) {
          return entry.second.state == PrefixState::kPinned;
        }));
  }
  return stats;
}

BlockMap SchedulerCore::block_map(const BlockMapLimits& limits) const {
  return MakeBlockMap(*state_, limits);
}

std::vector<BlockHash> SchedulerCore::cached_hashes() const {
  std::vector<BlockHash> hashes;
  const int32_t num_blocks = state_->epoch.has_value() ? state_->epoch->limits.num_blocks : 0;
  for (BlockId block_id = 1; block_id < num_blocks; ++block_id) {
    if (const auto hash = state_->epoch->kv_cache.HashOf(block_id)) {
      hashes.push_back(*hash);
    }
  }
  return hashes;
}

void SchedulerCore::CheckInvariants() const { quire::CheckInvariants(*state_); }

}  // namespace quire
