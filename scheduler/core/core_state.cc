#include "scheduler/core/core_state.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "scheduler/core/admission.h"
#include "scheduler/core/deadline_admission.h"

namespace quire {
namespace {

auto PlaceOf(std::vector<SequenceGroup*>& groups, const SequenceGroup& group) {
  return std::lower_bound(
      groups.begin(), groups.end(), &group, [](const SequenceGroup* a, const SequenceGroup* b) {
        return a->rank() < b->rank();
      });
}

void Insert(std::vector<SequenceGroup*>& groups, SequenceGroup& group) {
  groups.insert(PlaceOf(groups, group), &group);
}

void Remove(std::vector<SequenceGroup*>& groups, const SequenceGroup& group) {
  auto place = PlaceOf(groups, group);
  QUIRE_CHECK(place != groups.end() && *place == &group);
  groups.erase(place);
}

std::vector<SwapTables> TablesOf(SequenceGroup& group, SequenceState state) {
  std::vector<SwapTables> tables;
  for (Sequence& sequence : group.sequences()) {
    if (sequence.state() == state) {
      tables.push_back({.table = &sequence.table, .host_table = &sequence.host_table});
    }
  }
  return tables;
}

}  // namespace

Epoch::Epoch(uint64_t incarnation, uint64_t epoch_number, const StepLimits& step_limits)
    : scheduler_incarnation(incarnation),
      group_epoch(epoch_number),
      limits(step_limits),
      kv_cache(BlockPool(step_limits.num_blocks, step_limits.blocks_per_page),
               step_limits.block_size_tokens,
               step_limits.num_host_blocks,
               step_limits.sliding_window),
      handles(step_limits.max_sequences),
      preemption_cost(step_limits.block_size_tokens) {}

void UnansweredStep::Clear() {
  is_active = false;
  slices.clear();
  num_sampled = 0;
  num_tokens = 0;
  swap_outs.clear();
  swap_ins.clear();
  copies.clear();
  departed.clear();
}

SequenceGroup* CoreState::Find(RequestId id) {
  auto it = groups.find(id);
  return it == groups.end() ? nullptr : it->second.get();
}

StepLimits CoreState::LimitsFor(const Request& request) const {
  StepLimits limits = *last_limits;
  limits.num_blocks -=
      request.pins_prefix ? reserved_blocks.NumWithout(request.id) : reserved_blocks.num_blocks();
  return limits;
}

SequenceGroup& CoreState::Add(Request request) {
  RequestId id = request.id;
  auto it =
      groups.emplace_hint(groups.end(), id, std::make_unique<SequenceGroup>(std::move(request)));
  SequenceGroup& group = *it->second;
  waiting.Add(group);
  deadlines.Add(group.request());
  last_request_id = id;
  return group;
}

SequenceGroup& CoreState::StartFirstWaiting() {
  SequenceGroup& group = waiting.PopFront();
  Start(group);
  return group;
}

SequenceGroup* CoreState::NextSuspect() {
  for (const auto& [num_crashes, id] : suspects.suspects()) {
    // Find returns null for a pinned prefix that waits for room: no request computes it yet.
    if (SequenceGroup* group = Find(id)) {
      return group;
    }
  }
  return nullptr;
}

void CoreState::StartAhead(SequenceGroup& group) {
  QUIRE_CHECK(group.has_rank());
  waiting.Remove(group);
  Start(group);
}

void CoreState::Start(SequenceGroup& group) {
  group.has_overtaken = false;
  if (group.estimate == DeadlineEstimate::kReachable && !group.has_started()) {
    completion.OnTurn(/*is_in_time=*/true);
  }
  for (Sequence& sequence : group.sequences()) {
    if (!sequence.is_finished()) {
      sequence.BecomeRunning(epoch->handles.Take());
    }
  }
  Insert(running, group);
}

void CoreState::ReturnToWaiting(SequenceGroup& group) {
  for (Sequence& sequence : group.sequences()) {
    if (sequence.is_running()) {
      GiveBack(sequence);
      sequence.BecomeWaiting();
    }
  }
  Remove(running, group);
  waiting.Return(group);
}

bool CoreState::SwapOut(SequenceGroup& group) {
  const std::vector<SwapTables> tables = TablesOf(group, SequenceState::kRunning);
  const bool has_blocks = std::any_of(
      tables.begin(), tables.end(), [](const SwapTables& each) { return !each.table->empty(); });
  std::vector<SwappedBlock> blocks;
  if (!has_blocks || !epoch->kv_cache.SwapOut(tables, epoch->last_step_id + 1, blocks)) {
    return false;
  }
  for (const SwappedBlock& each : blocks) {
    step.swap_outs.push_back({.block = each.block, .host_block = each.host_block});
  }
  counters.num_blocks_swapped_out += static_cast<int64_t>(blocks.size());
  for (Sequence& sequence : group.sequences()) {
    if (sequence.is_running()) {
      GiveBackHandle(sequence);
      sequence.BecomeSwapped();
    }
  }
  group.num_blocks_to_resume.reset();
  Remove(running, group);
  Insert(swapped, group);
  return true;
}

int32_t CoreState::NumBlocksToResume(SequenceGroup& group) const {
  if (group.num_blocks_to_resume.has_value()) {
    return *group.num_blocks_to_resume;
  }
  const KvCacheManager& kv_cache = epoch->kv_cache;
  const SwapInNeed need = kv_cache.NeedToSwapIn(TablesOf(group, SequenceState::kSwapped));
  int32_t num_to_append = 0;
  for (const Sequence& sequence : group.sequences()) {
    if (sequence.is_swapped()) {
      num_to_append += kv_cache.NumBlocksFor(sequence.num_tokens()) -
                       kv_cache.NumBlocksFor(sequence.num_computed_tokens());
    }
  }
  const int32_t num_blocks = need.num_blocks + need.num_tail_copies + num_to_append;
  group.num_blocks_to_resume = static_cast<int32_t>(std::min<int64_t>(
      num_blocks, NumBlocksToCompute(group, /*num_shared_blocks=*/0, epoch->limits)));
  return *group.num_blocks_to_resume;
}

SequenceGroup* CoreState::Next() const {
  SequenceGroup* first_waiting = waiting.empty() ? nullptr : &waiting.front();
  if (swapped.empty()) {
    return first_waiting;
  }
  const bool is_waiting_next = first_waiting != nullptr && first_waiting->has_rank() &&
                               first_waiting->rank() < swapped.front()->rank();
  return is_waiting_next ? first_waiting : swapped.front();
}

bool CoreState::SwapIn(SequenceGroup& group) {
  std::vector<SwappedBlock> blocks;
  if (!epoch->kv_cache.SwapIn(
          TablesOf(group, SequenceState::kSwapped), epoch->last_step_id + 1, blocks)) {
    return false;
  }
  for (const SwappedBlock& each : blocks) {
    step.swap_ins.push_back(
        {.block = each.block, .host_block = each.host_block, .generation = each.generation});
  }
  counters.num_blocks_swapped_in += static_cast<int64_t>(blocks.size());
  for (Sequence& sequence : group.sequences()) {
    if (sequence.is_swapped()) {
      sequence.BecomeRunning(epoch->handles.Take());
    }
  }
  Remove(swapped, group);
  Insert(running, group);
  return true;
}

void CoreState::FinishSequence(SequenceGroup& group, Sequence& sequence, FinishReason reason) {
  const SequenceState last_state = sequence.state();
  End(sequence);
  group.num_blocks_to_resume.reset();
  bool is_last = group.is_finished();
  OnSequenceEnd(*this, group, sequence.num_output_tokens(), reason);
  if (!group.request().pins_prefix) {
    suspects.Forget(group.id(), sequence.sequence_index());
    events.push_back(SequenceFinished{.request_id = group.id(),
                                      .sequence_index = sequence.sequence_index(),
                                      .reason = reason,
                                      .num_output_tokens = sequence.num_output_tokens(),
                                      .is_last_of_request = is_last});
  }
  if (is_last) {
    OnGroupEnd(*this, group, reason);
    Depart(group, last_state);
  }
}

void CoreState::FinishBeamSearch(SequenceGroup& group,
                                 std::span<const BeamHypothesis> hypotheses,
                                 FinishReason reason_without) {
  const SequenceState last_state = group.sequences().front().state();
  suspects.Forget(group.id());
  for (Sequence& sequence : group.sequences()) {
    End(sequence);
  }
  for (int32_t index = 0; index < group.request().num_sequences; ++index) {
    SequenceFinished finished = {.request_id = group.id(),
                                 .sequence_index = index,
                                 .reason = reason_without,
                                 .is_last_of_request = index + 1 == group.request().num_sequences};
    if (static_cast<size_t>(index) < hypotheses.size()) {
      const BeamHypothesis& hypothesis = hypotheses[static_cast<size_t>(index)];
      for (TokenId token_id : hypothesis.token_ids) {
        events.push_back(
            TokenCommitted{.request_id = group.id(),
                           .sequence_index = index,
                           .token_index = finished.num_output_tokens++,
                           .token_id = token_id,
                           .num_cached_prompt_tokens = group.num_cached_prompt_tokens()});
      }
      finished.reason = hypothesis.has_stopped ? FinishReason::kStop : FinishReason::kLength;
      finished.beam_score = hypothesis.score;
      OnSequenceEnd(*this, group, finished.num_output_tokens, finished.reason);
      counters.num_tokens_committed += finished.num_output_tokens;
    }
    events.push_back(finished);
  }
  OnGroupEnd(*this, group, hypotheses.empty() ? reason_without : FinishReason::kLength);
  Depart(group, last_state);
}

void CoreState::FinishGroup(SequenceGroup& group, FinishReason reason) {
  if (group.is_beam_search()) {
    FinishBeamSearch(group, {}, reason);
    return;
  }
  // The last FinishSequence may destroy the group, so the loop does not read the group afterwards.
  int32_t num_left = group.num_live_sequences();
  for (size_t i = 0; num_left > 0; ++i) {
    Sequence& sequence = group.sequences()[i];
    if (!sequence.is_finished()) {
      --num_left;
      FinishSequence(group, sequence, reason);
    }
  }
}

std::vector<LostSlice> CoreState::LostSlices() const {
  std::vector<LostSlice> slices;
  for (const UnansweredStep::Slice& slice : step.slices) {
    if (slice.sequence->is_running()) {
      const int32_t begin = slice.sequence->num_computed_tokens();
      slices.push_back({.id = slice.group->id(),
                        .sequence_index = slice.sequence->sequence_index(),
                        .begin = begin,
                        .end = begin + slice.num_tokens,
                        .num_computed_ever = slice.sequence->num_tokens_computed_ever()});
    }
  }
  return slices;
}

void CoreState::AddBlockOperations(CoreStats* stats) const {
  const KvCacheManager::Operations& operations = epoch->kv_cache.operations();
  stats->num_blocks_allocated += operations.num_allocated;
  stats->num_blocks_evicted += operations.num_evicted;
  stats->num_blocks_found += operations.num_found;
  stats->num_blocks_forked += operations.num_forked;
}

void CoreState::LoseWorkers() {
  if (epoch.has_value()) {
    AddBlockOperations(&counters);
    lost_slices = LostSlices();
  }
  for (SequenceGroup* group : running) {
    for (Sequence& sequence : group->sequences()) {
      if (sequence.is_running()) {
        sequence.table.Abandon();
        sequence.BecomeWaiting();
      }
    }
    waiting.Return(*group);
  }
  for (SequenceGroup* group : swapped) {
    for (Sequence& sequence : group->sequences()) {
      if (sequence.is_swapped()) {
        sequence.host_table.Abandon();
        sequence.BecomeWaiting();
      }
    }
    waiting.Return(*group);
  }
  running.clear();
  swapped.clear();
  AbandonPrefixes(*this);
  step.Clear();
  epoch.reset();
  has_lost_cache = keeps_cache_events;
}

void CoreState::JudgeLoss(bool was_crash) {
  std::vector<LostSlice> lost = std::exchange(lost_slices, {});
  if (!was_crash) {
    return;
  }
  // A sequence that has ended cannot crash workers again.
  std::erase_if(lost, [this](const LostSlice& slice) {
    SequenceGroup* group = Find(slice.id);
    return group == nullptr ||
           group->sequences()[static_cast<size_t>(slice.sequence_index)].is_finished();
  });
  for (RequestId id : suspects.OnCrash(lost)) {
    ++counters.num_poison_requests;
    SequenceGroup& group = *Find(id);
    if (group.request().pins_prefix) {
      poison_prefixes.insert(id);
      UnpinPrefix(*this, id);
    } else {
      FinishGroup(group, FinishReason::kWorkerCrash);
    }
  }
}

void CoreState::ForkWaitingFrom(SequenceGroup& group, const Sequence& sequence) {
  const int32_t num_shared = sequence.num_prompt_tokens() - 1;
  if (num_shared == 0 || sequence.gap() > 0 || !group.IsLeader(sequence)) {
    return;
  }
  for (Sequence& other : group.sequences()) {
    if (other.is_running() && !other.is_introduced() && other.table.empty()) {
      epoch->kv_cache.Fork(sequence.table, num_shared, other.table);
      other.BeginWithCached(num_shared);
    }
  }
}

void CoreState::End(Sequence& sequence) {
  if (sequence.is_running()) {
    // The logits of the unanswered slice will not be checked, because the sequence ends here. The
    // logits can be non-finite, so other sequences must not use the blocks that the slice fills.
    if (sequence.num_scheduled_tokens() > 0) {
      const int32_t num_full = sequence.num_computed_tokens() / epoch->kv_cache.block_size_tokens();
      epoch->kv_cache.Unpublish(sequence.table, num_full, sequence.block_hashes);
    }
    GiveBack(sequence);
  } else if (sequence.is_swapped()) {
    epoch->kv_cache.Free(sequence.host_table);
  }
  sequence.BecomeFinished();
}

void CoreState::GiveBackHandle(const Sequence& sequence) {
  if (sequence.is_handle_known()) {
    epoch->handles.GiveBack(sequence.handle());
  } else {
    epoch->handles.GiveBackUnused(sequence.handle());
  }
}

void CoreState::GiveBack(Sequence& sequence) {
  epoch->kv_cache.Free(sequence.table);
  GiveBackHandle(sequence);
}

void CoreState::Depart(SequenceGroup& group, SequenceState last_state) {
  if (last_state == SequenceState::kRunning) {
    Remove(running, group);
  } else if (last_state == SequenceState::kSwapped) {
    Remove(swapped, group);
  } else {
    waiting.Remove(group);
  }
  deadlines.Remove(group.request());
  counters.num_requests_finished += group.request().pins_prefix ? 0 : 1;
  auto it = groups.find(group.id());
  if (step.is_active) {
    step.departed.push_back(std::move(it->second));
  }
  groups.erase(it);
}

}  // namespace quire
