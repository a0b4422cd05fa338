#include "scheduler/sim/paged_engine.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include "common/base/check.h"

namespace quire {
namespace {

CoreConfig CoreConfigOf(const SimConfig& config) {
  CoreConfig core;
  // The systems in the PagedAttention paper have unbounded queues.
  core.max_queued_requests = std::numeric_limits<int32_t>::max();
  core.max_queued_tokens = std::numeric_limits<int64_t>::max();
  core.prefix_caching = config.prefix_caching;
  core.preemption_mode = config.preemption_mode;
  core.target_inter_token = config.target_inter_token;
  return core;
}

}  // namespace

PagedEngine::PagedEngine(const SimConfig& config,
                         const StepLimits& limits,
                         int32_t shared_prefix_tokens)
    : limits_(limits),
      shared_prefix_tokens_(shared_prefix_tokens),
      num_sequences_(config.num_sequences),
      num_beams_(config.num_beams),
      checks_invariants_(config.checks_invariants),
      core_(CoreConfigOf(config)),
      known_(static_cast<size_t>(limits.max_sequences)),
      link_(config.platform, config.layout, limits) {
  core_.BeginEpoch(1, 1, limits);
}

void PagedEngine::Arrive(const SimRequest& request, size_t index, Instant now) {
  Request to_add;
  to_add.id = RequestId(index + 1);
  // The shared prefix repeats token 0. The rest repeats a token that no other request has.
  const auto own_token = static_cast<TokenId>(index % (kSimVocabSize - 1) + 1);
  to_add.prompt_token_ids.assign(static_cast<size_t>(request.prompt_tokens), own_token);
  std::fill_n(to_add.prompt_token_ids.begin(), shared_prefix_tokens_, TokenId{0});
  to_add.max_tokens = request.output_tokens;
  to_add.arrival = now;
  to_add.num_sequences = num_sequences_;
  if (num_beams_ > 1) {
    to_add.beam_search = {.num_beams = num_beams_};
    to_add.sampling.num_logprobs = num_beams_;
  }
  QUIRE_CHECK(core_.AddRequest(std::move(to_add)) == AddOutcome::kQueued);
}

bool PagedEngine::BeginStep(Instant now, EngineStep* step) {
  while (std::optional<StepPlan> plan = core_.PlanStep(now)) {
    begin_ = now;
    step->work = Execute(*plan);
    step->begin = link_.Begin(*plan, now);
    if (!plan->slices.empty() || step->begin > now) {
      step->memory = Memory();
      const CoreStats stats = core_.stats();
      step->held_blocks = stats.num_held_blocks;
      step->table_blocks = static_cast<double>(stats.num_table_blocks);
      return true;
    }
    // The plan only tells the worker which sequences to release, so the model runs no step.
    Answer(now);
  }
  return false;
}

StepWork PagedEngine::Execute(const StepPlan& plan) {
  result_ = {};
  result_.header = plan.header;
  result_.plan_digest = plan.digest;
  for (const SequenceIntroduction& introduction : plan.introductions) {
    known_[introduction.handle] = {
        .num_known_tokens = static_cast<int32_t>(introduction.token_ids.size()),
        .num_computed_tokens = introduction.num_computed_tokens,
        .num_candidates = std::max(0, introduction.sampling.num_logprobs)};
  }
  StepWork work;
  work.num_sequences = static_cast<int32_t>(plan.slices.size());
  for (const SequenceSlice& slice : plan.slices) {
    Known& sequence = known_[slice.handle];
    sequence.num_computed_tokens += slice.num_tokens;
    QUIRE_CHECK(sequence.num_computed_tokens <= sequence.num_known_tokens);
    work.num_tokens += slice.num_tokens;
    work.num_context_tokens += sequence.num_computed_tokens;
    work.num_attended_tokens += NumAttendedTokens(slice.num_tokens, sequence.num_computed_tokens);
    if (sequence.num_computed_tokens == sequence.num_known_tokens) {
      // Each sequence samples its handle as the token, so that sequences never become equal.
      result_.sampled.push_back({.handle = slice.handle,
                                 .token_id = static_cast<TokenId>(slice.handle),
                                 .top_logprobs = candidates_.Draw(sequence.num_candidates)});
      ++sequence.num_known_tokens;
    }
  }
  return work;
}

MemoryUse PagedEngine::Memory() const {
  const CoreStats stats = core_.stats();
  const double held =
      static_cast<double>(stats.num_blocks - stats.num_free_blocks) * limits_.block_size_tokens;
  const auto stored = static_cast<double>(stats.num_stored_tokens);
  return {.stored = stored,
          .internal = held - stored,
          .external = static_cast<double>(num_slots()) - held};
}

void PagedEngine::Answer(Instant now) {
  result_.swaps_done_step_id = link_.SwapsDone(result_.header.step_id, now);
  result_.timings.forward_us = (now - begin_) / kNanosPerMicro;
  QUIRE_CHECK(core_.ApplyStepResult(result_).ok());
}

void PagedEngine::Report(SimResult* result) const {
  const CoreStats stats = core_.stats();
  result->num_preemptions = stats.num_preemptions;
  result->num_swap_preemptions = stats.num_swap_preemptions;
  result->num_recomputed_tokens = stats.num_recomputed_tokens;
}

void PagedEngine::EndStep(Instant now, std::vector<size_t>* finished) {
  Answer(now);
  for (const OutputEvent& event : core_.TakeEvents()) {
    if (const auto* end = std::get_if<SequenceFinished>(&event)) {
      QUIRE_CHECK(end->reason == FinishReason::kLength);
      if (!end->is_last_of_request) {
        continue;
      }
      finished->push_back(static_cast<size_t>(end->request_id.value()) - 1);
    }
  }
  if (checks_invariants_) {
    core_.CheckInvariants();
  }
}

int64_t PagedEngine::num_free_slots() const {
  return int64_t{core_.stats().num_free_blocks} * limits_.block_size_tokens;
}

int64_t PagedEngine::num_slots() const {
  return int64_t{core_.stats().num_blocks} * limits_.block_size_tokens;
}

}  // namespace quire
