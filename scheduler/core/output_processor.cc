#include "scheduler/core/output_processor.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "scheduler/core/beam_group.h"
#include "scheduler/core/step_cost.h"

namespace quire {
namespace {

// A sequence ends if its logits for the same token are non-finite this many times in succession.
// Before that, its group is recomputed each time.
constexpr int32_t kMaxNonFinite = 2;

absl::Status Refuse(const std::string& message) { return InvalidArgument("STEP_RESULT", message); }

// A finite row of logits may still give non-finite log-probabilities. These matter only if the
// request asked for log-probabilities.
bool IsFinite(const SampledToken& sampled, const Request& request) {
  if (!sampled.finite || request.sampling.num_logprobs < 0) {
    return sampled.finite;
  }
  return std::isfinite(sampled.logprob) &&
         std::ranges::all_of(sampled.top_logprobs, [](const TokenLogprob& entry) {
           return std::isfinite(entry.logprob);
         });
}

bool IsFinite(const PromptLogprobs& prompt) {
  return std::ranges::all_of(prompt.logprobs, [](float each) { return std::isfinite(each); }) &&
         std::ranges::all_of(prompt.top,
                             [](const TokenLogprob& each) { return std::isfinite(each.logprob); });
}

bool IsToken(TokenId token_id, const StepLimits& limits) {
  return token_id >= 0 && token_id < limits.vocab_size;
}

absl::Status CheckSampled(const SampledToken& sampled,
                          SequenceHandle expected_handle,
                          const StepLimits& limits) {
  if (sampled.handle != expected_handle) {
    return Refuse(absl::StrCat("sampled.handle: must follow the plan's slices (got ",
                               sampled.handle,
                               ", expected ",
                               expected_handle,
                               ")"));
  }
  if (sampled.finite && !IsToken(sampled.token_id, limits)) {
    return Refuse(absl::StrCat("sampled.token_id: out of range (got ",
                               sampled.token_id,
                               ", limit ",
                               limits.vocab_size - 1,
                               ")"));
  }
  if (sampled.top_logprobs.size() > static_cast<size_t>(kMaxLogprobs)) {
    return Refuse(absl::StrCat("sampled.top_logprobs: too many entries (got ",
                               sampled.top_logprobs.size(),
                               ", limit ",
                               kMaxLogprobs,
                               ")"));
  }
  for (const TokenLogprob& entry : sampled.top_logprobs) {
    if (!IsToken(entry.token_id, limits)) {
      return Refuse(absl::StrCat("sampled.top_logprobs: token id out of range (got ",
                                 entry.token_id,
                                 ", limit ",
                                 limits.vocab_size - 1,
                                 ")"));
    }
  }
  return absl::OkStatus();
}

// Beam search needs all the candidates that it asked for, else its ranking could be wrong.
absl::Status CheckCandidates(const SampledToken& sampled,
                             const Request& request,
                             const StepLimits& limits) {
  const auto num_wanted =
      static_cast<size_t>(std::min(request.sampling.num_logprobs, limits.vocab_size));
  if (!sampled.finite || sampled.top_logprobs.size() == num_wanted) {
    return absl::OkStatus();
  }
  return Refuse(absl::StrCat("sampled.top_logprobs: must have as many entries as requested (got ",
                             sampled.top_logprobs.size(),
                             ", expected ",
                             num_wanted,
                             ")"));
}

absl::Status CheckScored(const ScoredSlice& scored,
                         const UnansweredStep::Slice& slice,
                         const StepLimits& limits) {
  const PromptLogprobs& prompt = scored.prompt;
  const int32_t num_top =
      std::min(slice.group->request().sampling.num_prompt_logprobs, limits.vocab_size);
  if (scored.handle != slice.handle || prompt.first_position != slice.first_scored ||
      prompt.num_tokens() != slice.num_scored || prompt.num_top != num_top ||
      prompt.top.size() != prompt.logprobs.size() * static_cast<size_t>(num_top)) {
    return Refuse("scored: must have the log-probabilities that the plan's slices ask for");
  }
  const auto is_outside = [&limits](const TokenLogprob& top) {
    return !IsToken(top.token_id, limits);
  };
  return std::ranges::any_of(prompt.top, is_outside) ? Refuse("scored.top: token id out of range")
                                                     : absl::OkStatus();
}

std::optional<FinishReason> ReasonToFinish(const Request& request,
                                           const Sequence& sequence,
                                           TokenId last_token_id) {
  // The last token itself does not count: min_tokens tokens must precede it.
  bool may_stop = sequence.num_output_tokens() > request.sampling.min_tokens;
  bool is_stop =
      std::find(request.stop_token_ids.begin(), request.stop_token_ids.end(), last_token_id) !=
      request.stop_token_ids.end();
  if (may_stop && is_stop) {
    return FinishReason::kStop;
  }
  return sequence.num_output_tokens() >= request.max_tokens
             ? std::make_optional(FinishReason::kLength)
             : std::nullopt;
}

void CommitToken(CoreState& state,
                 SequenceGroup& group,
                 Sequence& sequence,
                 const SampledToken& sampled) {
  state.events.push_back(
      TokenCommitted{.request_id = group.id(),
                     .sequence_index = sequence.sequence_index(),
                     .token_index = sequence.num_output_tokens(),
                     .token_id = sampled.token_id,
                     .logprob = sampled.logprob,
                     .top_logprobs = sampled.top_logprobs,
                     .num_cached_prompt_tokens = group.num_cached_prompt_tokens()});
  sequence.Commit(sampled.token_id);
  ++state.counters.num_tokens_committed;
  auto reason = ReasonToFinish(group.request(), sequence, sampled.token_id);
  if (reason.has_value()) {
    state.FinishSequence(group, sequence, *reason);
  }
}

// Adds as double, because a worker may report any integers, and an integer sum could overflow.
double MicrosOf(const StepTimings& timings) {
  return static_cast<double>(timings.build_us) + static_cast<double>(timings.forward_us) +
         static_cast<double>(timings.sample_us);
}

// Checks that the failed swap-ins are swap-ins of the step, in the plan's order.
absl::Status CheckFailedSwapIns(const UnansweredStep& step, const StepResult& result) {
  auto ordered = step.swap_ins.begin();
  for (BlockId block_id : result.failed_swap_ins) {
    ordered = std::find_if(ordered, step.swap_ins.end(), [block_id](const BlockSwapIn& swap) {
      return swap.block == block_id;
    });
    if (ordered == step.swap_ins.end()) {
      return Refuse(absl::StrCat(
          "failed_swap_ins: must be blocks of the plan's swap-ins, in their order (got ",
          block_id,
          ")"));
    }
    ++ordered;
  }
  return absl::OkStatus();
}

// Recomputes every running group that has a block of failed_swap_ins, or a copy of such a block,
// because the block's contents are undefined. Each such group came back in this step, so the prefix
// cache does not list its blocks yet. A swapped group that shares the lost host block is recomputed
// when its own swap-in fails.
void RecomputeWithout(CoreState& state, const std::vector<BlockId>& failed_swap_ins) {
  std::unordered_set<BlockId> lost(failed_swap_ins.begin(), failed_swap_ins.end());
  for (const BlockCopy& copy : state.step.copies) {
    if (lost.contains(copy.src)) {  // a failed swap-in counts even if its group has ended since
      lost.insert(copy.dst);
    }
  }
  const auto lacks_block = [&lost](const Sequence& sequence) {
    return std::ranges::any_of(sequence.table.block_ids(),
                               [&lost](BlockId block_id) { return lost.contains(block_id); });
  };
  std::vector<SequenceGroup*> to_recompute;
  if (!lost.empty()) {
    std::ranges::copy_if(
        state.running, std::back_inserter(to_recompute), [&](const SequenceGroup* group) {
          return std::ranges::any_of(group->sequences(), lacks_block);
        });
  }
  for (SequenceGroup* group : to_recompute) {
    state.ReturnToWaiting(*group);
  }
  state.counters.num_failed_swap_ins += static_cast<int64_t>(failed_swap_ins.size());
}

void LearnCosts(CoreState& state, const StepResult& result) {
  PreemptionCost::Step step = {.step_id = result.header.step_id,
                               .swaps_done_step_id = result.swaps_done_step_id,
                               .num_tokens = state.step.num_tokens,
                               .num_swap_outs = static_cast<int64_t>(state.step.swap_outs.size()),
                               .num_swap_ins = static_cast<int64_t>(state.step.swap_ins.size() -
                                                                    result.failed_swap_ins.size()),
                               .micros = MicrosOf(result.timings)};
  // Only kAuto needs num_recomputed and num_context.
  const bool is_auto = state.config.preemption_mode == PreemptionMode::kAuto;
  for (const UnansweredStep::Slice& slice :
       std::span(state.step.slices).first(is_auto ? state.step.slices.size() : 0)) {
    step.num_recomputed += slice.num_recomputed;
    step.num_context += NumContextTokens(slice.sequence->num_computed_tokens(),
                                         slice.num_tokens,
                                         state.epoch->limits.sliding_window);
  }
  state.epoch->preemption_cost.ObserveStep(step);
}

// Counts the tokens of the slice as computed. has_token: a token was sampled after the slice, from
// a finite row of logits.
void EndSlice(CoreState& state, const UnansweredStep::Slice& slice, bool has_token) {
  Sequence& sequence = *slice.sequence;
  const int32_t num_left_of_prompt =
      std::max(0, sequence.num_prompt_tokens() - sequence.num_computed_tokens());
  state.counters.num_prompt_tokens_computed += std::min(num_left_of_prompt, slice.num_tokens);
  state.counters.num_recomputed_tokens += slice.num_recomputed;
  sequence.EndSlice();
  state.suspects.OnComputed(
      slice.group->id(), sequence.sequence_index(), sequence.num_computed_tokens());
  const Request& request = slice.group->request();
  if (has_token && request.num_sequences > 1 && !request.beam_search) {
    state.ForkWaitingFrom(*slice.group, sequence);
  }
  state.epoch->kv_cache.SlideWindow(sequence.table, sequence.num_computed_tokens());
}

// Reports the prompt log-probabilities that were not reported before. A sequence that is computed
// again also scores its prompt again, so the front of `prompt` may have been reported. The first
// unreported position is num_scored_tokens() + 1, since position 0 has no log-probability, and
// `prompt` does not begin behind it.
void TakeScored(CoreState& state, SequenceGroup& group, PromptLogprobs prompt) {
  prompt.TakeFront(group.num_scored_tokens() + 1 - prompt.first_position);
  if (prompt.num_tokens() > 0) {
    group.CountScored(prompt.num_tokens());
    state.events.push_back(PromptScored{.request_id = group.id(), .prompt = std::move(prompt)});
  }
}

void TakeToken(CoreState& state,
               SequenceGroup& group,
               Sequence& sequence,
               const SampledToken& sampled) {
  if (group.request().pins_prefix) {
    OnPrefixComputed(state, group, sequence);
    state.FinishGroup(group, FinishReason::kStop);
    return;
  }
  state.policy->OnServed(group.request().tenant, 0, /*num_output_tokens=*/1);
  if (group.is_beam_search()) {
    TakeCandidates(state, group, sequence, sampled.top_logprobs);
  } else {
    CommitToken(state, group, sequence, sampled);
  }
}

// Returns true if the group must be recomputed. Otherwise the sequence or its group has ended.
bool TakeNonFinite(CoreState& state, SequenceGroup& group, Sequence& sequence) {
  ++state.counters.num_non_finite;
  // Other sequences must not share this sequence's blocks, because the blocks may hold the cause.
  state.epoch->kv_cache.Unpublish(sequence.table, /*first_block=*/0, sequence.block_hashes);
  if (sequence.CountNonFinite() < kMaxNonFinite) {
    return true;
  }
  if (group.is_beam_search()) {
    state.FinishGroup(group, FinishReason::kNonFinite);
  } else if (group.request().pins_prefix) {
    UnpinPrefix(state, group.id());
  } else {
    state.FinishSequence(group, sequence, FinishReason::kNonFinite);
  }
  return false;
}

}  // namespace

absl::Status CheckResult(const CoreState& state, const StepResult& result) {
  const UnansweredStep& step = state.step;
  if (!step.is_active) {
    return Refuse("header: no step is waiting for a result");
  }
  if (result.header != step.header) {
    return Refuse(absl::StrCat("header: must match the step that was sent (got step_id ",
                               result.header.step_id,
                               ", expected ",
                               step.header.step_id,
                               ")"));
  }
  if (result.plan_digest != step.plan_digest) {
    return Refuse("plan_digest: the worker executed a different plan");
  }
  if (result.sampled.size() != step.num_sampled) {
    return Refuse(absl::StrCat("sampled: must have one entry for each slice that samples (got ",
                               result.sampled.size(),
                               ", expected ",
                               step.num_sampled,
                               ")"));
  }
  if (result.swaps_done_step_id > result.header.step_id) {
    return Refuse(absl::StrCat("swaps_done_step_id: must not exceed the answered step (got ",
                               result.swaps_done_step_id,
                               ", limit ",
                               result.header.step_id,
                               ")"));
  }
  const auto num_scored_slices = std::ranges::count_if(
      step.slices, [](const UnansweredStep::Slice& slice) { return slice.num_scored > 0; });
  if (static_cast<std::ptrdiff_t>(result.scored.size()) != num_scored_slices) {
    return Refuse(absl::StrCat("scored: must have one entry for each slice that scores (got ",
                               result.scored.size(),
                               ", expected ",
                               num_scored_slices,
                               ")"));
  }
  QUIRE_RETURN_IF_ERROR(CheckFailedSwapIns(step, result));
  auto next = result.sampled.begin();
  auto next_scored = result.scored.begin();
  for (const UnansweredStep::Slice& slice : step.slices) {
    if (slice.num_scored > 0) {
      QUIRE_RETURN_IF_ERROR(CheckScored(*next_scored++, slice, state.epoch->limits));
    }
    if (slice.samples) {
      const SampledToken& sampled = *next++;
      absl::Status status = CheckSampled(sampled, slice.handle, state.epoch->limits);
      if (status.ok() && slice.group->is_beam_search()) {
        status = CheckCandidates(sampled, slice.group->request(), state.epoch->limits);
      }
      if (!status.ok()) {
        return status;
      }
    }
  }
  return absl::OkStatus();
}

void ProcessResult(CoreState& state, const StepResult& result) {
  state.epoch->kv_cache.OnStepAnswered();
  state.epoch->kv_cache.OnSwapsDone(result.swaps_done_step_id);
  LearnCosts(state, result);
  RecomputeWithout(state, result.failed_swap_ins);
  std::vector<SequenceGroup*> to_recompute;
  auto next = result.sampled.begin();
  auto next_scored = result.scored.begin();
  for (const UnansweredStep::Slice& slice : state.step.slices) {
    const SampledToken* sampled = slice.samples ? &*next++ : nullptr;
    const ScoredSlice* scored = slice.num_scored > 0 ? &*next_scored++ : nullptr;
    if (!slice.sequence->is_running()) {
      continue;  // the sequence ended during the step, or is recomputed: its token is dropped
    }
    const bool is_finite = (sampled == nullptr || IsFinite(*sampled, slice.group->request())) &&
                           (scored == nullptr || IsFinite(scored->prompt));
    const bool has_token = sampled != nullptr && is_finite;
    EndSlice(state, slice, has_token);
    if (scored != nullptr && is_finite) {
      TakeScored(state, *slice.group, scored->prompt);
    }
    if (sampled == nullptr && is_finite) {
      continue;
    }
    if (has_token) {
      TakeToken(state, *slice.group, *slice.sequence, *sampled);
    } else if (TakeNonFinite(state, *slice.group, *slice.sequence)) {
      to_recompute.push_back(slice.group);
    }
  }
  // A group is recomputed only after the loop, else the group's later slices would be dropped.
  // to_recompute may list a group more than once.
  for (SequenceGroup* group : to_recompute) {
    if (group->is_running()) {
      state.ReturnToWaiting(*group);
    }
  }
  ++state.counters.num_steps;
  state.step.Clear();
}

}  // namespace quire
