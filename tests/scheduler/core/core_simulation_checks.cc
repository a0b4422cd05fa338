// Checks of CoreSimulation: of the core's plans and of its events.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>

#include "scheduler/core/admission.h"
#include "tests/scheduler/core/core_simulation.h"
#include "tests/scheduler/core/next_block_audit.h"

namespace quire {
namespace {

StepPlan WithoutHints(StepPlan plan) {
  for (SequenceSlice& slice : plan.slices) {
    slice.next_block_id.reset();
  }
  plan.spare = {};
  return plan;
}

}  // namespace

void CoreSimulation::CheckPlan(const StepPlan& plan) {
  Expect(plan.header.scheduler_incarnation == kIncarnation, "incarnation");
  Expect(plan.header.group_epoch == group_epoch_, "epoch");
  Trace(DigestOf(WithoutHints(plan)));
  for (const SequenceIntroduction& introduction : plan.introductions) {
    Expect(MayIntroduce(introduction), "a handle is introduced when it is free, or a beam's");
    CheckIntroduction(introduction);
  }
  for (const SequenceSlice& slice : plan.slices) {
    HandleOwner owner = owner_of_handle_[slice.handle];
    const RequestModel& request = requests_.at(owner.id.value());
    const auto index = static_cast<size_t>(request.is_beam_search() ? 0 : owner.sequence_index);
    Expect(!request.sequences[index].is_finished, "who has finished computes no more");
  }
  ExpectNone(audit_->OnPlan(plan, requests_, core_->stats()));
  CheckSuspects(plan);
  if (wants_next_blocks_) {
    CheckNextBlocks(plan);
  }
}

void CoreSimulation::CheckNextBlocks(const StepPlan& plan) {
  ExpectNone(FaultOfNextBlocks(
      plan, core_->block_map({.max_cells = std::max(1, limits_.num_blocks), .max_holders = 0})));
  std::map<SequenceHandle, BlockId> named = std::exchange(next_blocks_, {});
  for (const SequenceSlice& slice : plan.slices) {
    // Pools of few pages often have no whole one, and then no block is foreseen.
    if (slice.num_tokens == 1 && slice.new_block_ids.size() == 1 && blocks_per_page_ == 1) {
      const auto next = named.find(slice.handle);
      ++num_appended_;
      num_foreseen_ += next != named.end() && next->second == slice.new_block_ids.front() ? 1 : 0;
    }
    if (slice.next_block_id.has_value()) {
      next_blocks_[slice.handle] = *slice.next_block_id;
    }
  }
}

bool CoreSimulation::MayIntroduce(const SequenceIntroduction& introduction) const {
  if (!worker_->IsKnown(introduction.handle)) {
    return true;
  }
  const HandleOwner owner = owner_of_handle_[introduction.handle];
  auto it = requests_.find(owner.id.value());
  return it != requests_.end() && it->second.is_beam_search() &&
         introduction.sampling.seed == owner.id.value() &&
         introduction.sequence_index == owner.sequence_index;
}

void CoreSimulation::CheckIntroduction(const SequenceIntroduction& introduction) {
  auto it = requests_.find(introduction.sampling.seed);
  if (it == requests_.end() || introduction.sequence_index >= it->second.request.group_size()) {
    Expect(false, "an introduction is of a known sequence");
    return;
  }
  RequestModel& request = it->second;
  const auto index =
      static_cast<size_t>(request.is_beam_search() ? 0 : introduction.sequence_index);
  const SequenceModel& sequence = request.sequences[index];
  Expect(!sequence.is_finished, "who has finished is not introduced");
  const bool is_history = request.beams.has_value() ? request.beams->HadBeam(introduction.token_ids)
                                                    : introduction.token_ids == sequence.token_ids;
  Expect(is_history, "an introduction repeats the history");
  Expect(introduction.num_prompt_tokens ==
             static_cast<int32_t>(request.request.prompt_token_ids.size()),
         "the prompt is as long as it was");
  SamplingParams sampling = request.request.sampling;
  const bool is_scored = request.num_scored == request.request.num_prompt_logprobs();
  if (is_scored || introduction.sampling.num_prompt_logprobs < 0) {
    sampling.num_prompt_logprobs = -1;
  }
  Expect(introduction.sampling == sampling, "sampling is as asked for");
  if (!request.was_introduced) {
    request.was_introduced = true;
    ++num_started_;
    const std::vector<RequestId>& started = core_->started();
    Expect(std::ranges::count(started, request.request.id) == 1, "who starts is told, once");
    fairness_.OnStarted(request.request);
  }
  num_passed_blocks_ +=
      std::count(introduction.block_ids.begin(), introduction.block_ids.end(), kNullBlockId);
  owner_of_handle_[introduction.handle] = {request.request.id, introduction.sequence_index};
}

void CoreSimulation::TakeEvents() {
  for (const OutputEvent& event : core_->TakeEvents()) {
    if (const auto* token = std::get_if<TokenCommitted>(&event)) {
      OnToken(*token);
    } else if (const auto* scored = std::get_if<PromptScored>(&event)) {
      OnPromptScored(*scored);
    } else {
      OnFinished(std::get<SequenceFinished>(event));
    }
  }
}

void CoreSimulation::OnPromptScored(const PromptScored& event) {
  const auto it = requests_.find(event.request_id.value());
  if (it == requests_.end() || it->second.request.sampling.num_prompt_logprobs < 0) {
    Expect(false, "log-probabilities of a prompt are of a request that asked for them");
    return;
  }
  RequestModel& request = it->second;
  PromptLogprobs expected = ExpectedPromptLogprobs(request.request.prompt_token_ids,
                                                   request.request.sampling.num_prompt_logprobs,
                                                   kVocabSize,
                                                   limits_.sliding_window);
  expected.TakeFront(request.num_scored);
  expected = expected.TakeFront(event.prompt.num_tokens());
  Expect(event.prompt == expected, "log-probabilities follow from the prompt, none twice");
  request.num_scored += event.prompt.num_tokens();
  num_scored_ += event.prompt.num_tokens();
}

void CoreSimulation::OnToken(const TokenCommitted& event) {
  auto it = requests_.find(event.request_id.value());
  if (it == requests_.end() || event.sequence_index < 0 ||
      event.sequence_index >= it->second.request.num_sequences) {
    Expect(false, "a token is of a known sequence");
    return;
  }
  const Request& request = it->second.request;
  SequenceModel& sequence = it->second.sequences[static_cast<size_t>(event.sequence_index)];
  Expect(!sequence.is_finished, "no token after the end");
  size_t num_output = sequence.token_ids.size() - request.prompt_token_ids.size();
  Expect(event.token_index == static_cast<int32_t>(num_output), "no index missing or doubled");
  Expect(it->second.num_scored == request.num_prompt_logprobs() || request.is_resumed,
         "the whole prompt is scored before the first token");
  const bool is_beam = it->second.is_beam_search();
  const TokenId expected =
      is_beam
          ? it->second.beams->hypotheses()[static_cast<size_t>(event.sequence_index)].token_ids.at(
                num_output)
          : ExpectedToken(sequence.token_ids,
                          request.sampling.seed,
                          event.sequence_index,
                          kVocabSize,
                          limits_.sliding_window);
  Expect(event.token_id == expected, "the token follows from the true history");
  sequence.token_ids.push_back(event.token_id);
  Trace(static_cast<uint64_t>(event.token_id));
}

void CoreSimulation::OnFinished(const SequenceFinished& event) {
  auto it = requests_.find(event.request_id.value());
  if (it == requests_.end() || event.sequence_index < 0 ||
      event.sequence_index >= it->second.request.num_sequences) {
    Expect(false, "an end is of a known sequence");
    return;
  }
  RequestModel& request = it->second;
  SequenceModel& sequence = request.sequences[static_cast<size_t>(event.sequence_index)];
  Expect(!sequence.is_finished, "one end for each sequence");
  Expect(request.is_beam_search() ? IsTrueReasonOfBeams(request, event)
                                  : IsTrueReason(request, sequence, event.reason),
         "the reason is true: " + std::to_string(static_cast<int>(event.reason)));
  Expect(event.num_output_tokens == static_cast<int32_t>(sequence.token_ids.size() -
                                                         request.request.prompt_token_ids.size()),
         "the end counts the tokens");
  sequence.is_finished = true;
  request.num_crashes = 0;  // the places of the others are other ones
  const int64_t num_pool_tokens = int64_t{limits_.num_blocks - 1} * limits_.block_size_tokens;
  num_longer_than_pool_ += static_cast<int64_t>(sequence.token_ids.size()) > num_pool_tokens;
  Expect(event.is_last_of_request == request.is_finished(), "the last sequence says so");
  Expect(!event.is_last_of_request || event.reason != FinishReason::kLength ||
             request.num_scored == request.request.num_prompt_logprobs(),
         "the prompt is scored when the request ends");
  ++num_finished_[static_cast<size_t>(event.reason)];
  Trace(static_cast<uint64_t>(event.reason));
}

bool CoreSimulation::IsTrueReason(const RequestModel& request,
                                  const SequenceModel& sequence,
                                  FinishReason reason) const {
  switch (reason) {
    case FinishReason::kStop:
      return sequence.was_stopped || HasStopped(request, sequence);
    case FinishReason::kLength:
      return IsFull(request, sequence) && !HasStopped(request, sequence);
    case FinishReason::kAborted:
      return request.was_aborted;
    case FinishReason::kExpiredQueued:
      return request.request.deadline <= now_ && !request.has_computed;
    case FinishReason::kExpiredRunning:
      return request.request.deadline <= now_ && request.was_introduced;
    case FinishReason::kUnreachable:
      return request.request.deadline != kInfiniteFuture && !request.has_computed;
    case FinishReason::kNonFinite:
      return sequence.num_non_finite == 2;
    case FinishReason::kNoCapacity:
      return request.lacks_capacity;
    case FinishReason::kWorkerCrash:
      return request.poison.has_value() && request.num_losses_alone >= 3;
  }
  return false;
}

bool CoreSimulation::IsTrueReasonOfBeams(const RequestModel& request,
                                         const SequenceFinished& event) const {
  if (event.reason == FinishReason::kStop || event.reason == FinishReason::kLength) {
    const BeamHypothesis& hypothesis =
        request.beams->hypotheses()[static_cast<size_t>(event.sequence_index)];
    return hypothesis.has_stopped == (event.reason == FinishReason::kStop) &&
           event.beam_score == hypothesis.score &&
           event.num_output_tokens == static_cast<int32_t>(hypothesis.token_ids.size());
  }
  if (event.num_output_tokens > 0 || event.beam_score.has_value()) {
    return false;
  }
  if (event.reason == FinishReason::kNonFinite) {
    return request.had_non_finite;
  }
  return IsTrueReason(request, request.sequences.front(), event.reason);
}

bool CoreSimulation::HasStopped(const RequestModel& request, const SequenceModel& sequence) const {
  size_t num_output = sequence.token_ids.size() - request.request.prompt_token_ids.size();
  const std::vector<TokenId>& stops = request.request.stop_token_ids;
  return num_output > static_cast<size_t>(request.request.sampling.min_tokens) &&
         std::find(stops.begin(), stops.end(), sequence.token_ids.back()) != stops.end();
}

bool CoreSimulation::IsFull(const RequestModel& request, const SequenceModel& sequence) const {
  auto num_tokens = static_cast<int32_t>(sequence.token_ids.size());
  auto num_prompt = static_cast<int32_t>(request.request.prompt_token_ids.size());
  return num_tokens - num_prompt == request.request.max_tokens;
}

bool CoreSimulation::Fits(const RequestModel& request) const {
  auto num_prompt = static_cast<int32_t>(request.request.prompt_token_ids.size());
  auto num_live = static_cast<int32_t>(std::count_if(
      request.sequences.begin(), request.sequences.end(), [](const SequenceModel& sequence) {
        return !sequence.is_finished;
      }));
  num_live = request.is_beam_search() ? request.request.group_size() : num_live;
  const int32_t num_tokens = num_prompt + request.request.max_tokens;
  return num_tokens <= limits_.max_model_len && num_live <= limits_.max_sequences &&
         NumBlocksAtMost(num_live, num_tokens, limits_) < limits_.num_blocks;
}

void CoreSimulation::CheckNobodyIsOverdue() {
  for (const auto& [id, request] : requests_) {
    if (request.is_beam_search()) {
      continue;  // its tokens come with its end
    }
    for (const SequenceModel& sequence : request.sequences) {
      size_t num_prompt = request.request.prompt_token_ids.size();
      bool has_output = sequence.token_ids.size() > num_prompt;
      Expect(sequence.is_finished || sequence.num_non_finite < 2, "two bad rows end it");
      Expect(sequence.is_finished || !has_output || !HasStopped(request, sequence),
             "a stop token ends it");
      Expect(
          sequence.is_finished || !has_output || !worker_.has_value() || !IsFull(request, sequence),
          "a full sequence ends");
    }
  }
  // A finished request needs no more checks, so it is forgotten once eight newer ones exist.
  std::erase_if(requests_, [this](const auto& entry) {
    return entry.second.is_finished() && entry.first + 8 < next_id_ && !plan_.has_value();
  });
}

void CoreSimulation::CheckCounts() {
  const CoreStats stats = core_->stats();
  const auto num_live = std::count_if(requests_.begin(), requests_.end(), [](const auto& entry) {
    return !entry.second.is_finished();
  });
  Expect(stats.num_waiting_requests + stats.num_running_requests + stats.num_swapped_requests ==
             num_live,
         "who lives waits, runs or is swapped");
  Expect(!plan_.has_value() || stats.num_free_blocks == num_free_planned_,
         "no block becomes free while the step that may touch it is unanswered");
  Expect(
      stats.num_free_blocks + stats.num_used_blocks + stats.num_pending_blocks == stats.num_blocks,
      "every block is free, used or pending");
  Expect(stats.num_free_cached_blocks <= stats.num_free_blocks &&
             stats.num_held_blocks <= stats.num_used_blocks &&
             stats.num_used_blocks - stats.num_held_blocks <= stats.num_leaving_blocks,
         "a used block that no table holds is leaving");
  Expect(stats.num_stored_tokens <= stats.num_table_tokens && stats.fragmentation() >= 0.0 &&
             stats.fragmentation() < 1.0,
         "held blocks hold tokens, shared ones once");
  Expect(stats.num_shared_blocks > 0 || stats.num_stored_tokens == stats.num_table_tokens,
         "without sharing a token is stored once");
  if (num_events_ % 4 == 0) {
    CheckBlockMap(/*max_cells=*/num_events_ % 8 == 0 ? 7 : 1 << 20);
  }
}

void CoreSimulation::CheckCacheEvents() {
  ExpectNone(cache_events_.Apply(core_->TakeCacheEvents(), limits_.block_size_tokens));
  ExpectNone(
      cache_events_.Compare(core_.untimed().cached_hashes(), requests_, limits_.block_size_tokens));
}

void CoreSimulation::CheckBlockMap(int32_t max_cells) {
  const CoreStats stats = core_->stats();
  const BlockMap map = core_->block_map({.max_cells = max_cells, .max_holders = 1 << 20});
  BlockMapCell sum;
  for (const BlockMapCell& cell : map.cells) {
    sum.num_cached += cell.num_cached;
    sum.num_active += cell.num_active;
    sum.num_leaving += cell.num_leaving;
    sum.num_shared += cell.num_shared;
    Expect((cell.num_active > 0) == (cell.holder.value() > 0), "who is held has a holder");
    Expect(cell.num_cached + cell.num_active + cell.num_leaving <= map.blocks_per_cell,
           "a cell has no more blocks than it stands for");
  }
  Expect(sum.num_cached == stats.num_free_cached_blocks && sum.num_active == stats.num_held_blocks,
         "the map shows the cached and the held blocks");
  Expect(
      sum.num_leaving == stats.num_used_blocks - stats.num_held_blocks + stats.num_pending_blocks,
      "the map shows the blocks that leave");
  Expect(sum.num_shared == stats.num_shared_blocks, "the map shows the shared blocks");
  const auto num_cells = static_cast<int32_t>(map.cells.size());
  Expect(num_cells <= max_cells && num_cells * map.blocks_per_cell >= stats.num_blocks &&
             (num_cells - 1) * map.blocks_per_cell < std::max(1, stats.num_blocks),
         "the cells are all blocks");
  int32_t num_held = 0;
  for (const BlockHolder& holder : map.holders) {
    num_held += holder.num_blocks;
  }
  Expect(num_held == stats.num_held_blocks, "what holders have adds up");
}

}  // namespace quire
