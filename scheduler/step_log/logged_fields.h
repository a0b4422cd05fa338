// Lists every type that goes into a step log, with all of its fields. This list is the format:
// field_codec.h writes and reads the fields named here.
//
// A new field of such a type must be added to the list, else this header does not compile: the
// macro's structured binding needs all fields, in the order of declaration. A field in the list is
// logged and changes the layout in the log's head, so older logs are refused. To keep older logs
// readable, append the field to its record instead (step_log_record.h, PutTail).
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_SCHEDULER_STEP_LOG_LOGGED_FIELDS_H_
#define QUIRE_SCHEDULER_STEP_LOG_LOGGED_FIELDS_H_

#include <concepts>
#include <tuple>
#include <type_traits>

#include "common/base/sip_hash.h"
#include "common/model/sampling_params.h"
#include "common/step/step_limits.h"
#include "common/step/step_plan.h"
#include "common/step/step_result.h"
#include "scheduler/core/beam_search.h"
#include "scheduler/core/core_config.h"
#include "scheduler/core/output_event.h"
#include "scheduler/core/request.h"

// FieldsOf(value) returns references to all fields.
#define QUIRE_LOGGED_FIELDS(Type, ...)                \
  template <typename T>                               \
  requires std::same_as<std::remove_const_t<T>, Type> \
  auto FieldsOf(T& logged) {                          \
    auto& [__VA_ARGS__] = logged;                     \
    return std::tie(__VA_ARGS__);                     \
  }

// LastOf(value) returns the greatest enumerator. REQUIRES: the enumerators are numbered from 0
// without gaps.
#define QUIRE_LOGGED_ENUM(Type, last) \
  constexpr Type LastOf(Type /*value*/) { return Type::last; }

namespace quire {

QUIRE_LOGGED_ENUM(PreemptionMode, kAuto)
QUIRE_LOGGED_ENUM(SchedulingPolicyKind, kFairShare)
QUIRE_LOGGED_ENUM(EarlyStopping, kNever)
QUIRE_LOGGED_ENUM(FinishReason, kWorkerCrash)

QUIRE_LOGGED_FIELDS(Hash128, low, high)

QUIRE_LOGGED_FIELDS(CoreConfig,
                    max_queued_requests,
                    max_queued_tokens,
                    max_resumed_requests,
                    watermark,
                    scheduling_policy,
                    priority_ageing,
                    target_inter_token,
                    introduction_budget_bytes,
                    preemption_mode,
                    prefix_caching,
                    max_pinned_share,
                    block_hash_key)

// This FieldsOf is written without the macro, because the macro would also list wants_next_blocks
// and blocks_per_page. The record EpochBegun appends these fields instead (PutTail).
template <typename T>
requires std::same_as<std::remove_const_t<T>, StepLimits>
auto FieldsOf(T& logged) {
  auto& [num_blocks,
         num_host_blocks,
         block_size_tokens,
         max_sequences,
         max_tokens_per_step,
         max_model_len,
         vocab_size,
         sliding_window,
         wants_next_blocks,
         blocks_per_page] = logged;
  return std::tie(num_blocks,
                  num_host_blocks,
                  block_size_tokens,
                  max_sequences,
                  max_tokens_per_step,
                  max_model_len,
                  vocab_size,
                  sliding_window);
}

QUIRE_LOGGED_FIELDS(SamplingParams,
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    repetition_penalty,
                    presence_penalty,
                    frequency_penalty,
                    logit_bias,
                    num_logprobs,
                    num_prompt_logprobs,
                    min_tokens,
                    banned_before_min_tokens,
                    seed)

QUIRE_LOGGED_FIELDS(BeamOptions, num_beams, length_penalty, early_stopping)
QUIRE_LOGGED_FIELDS(ResumedSequence, token_ids, has_ended)
QUIRE_LOGGED_FIELDS(Request,
                    id,
                    prompt_token_ids,
                    sampling,
                    num_sequences,
                    beam_search,
                    resumed,
                    max_tokens,
                    stop_token_ids,
                    priority,
                    tenant,
                    cache_salt,
                    bypasses_prefix_cache,
                    num_known_prompt_logprobs,
                    is_resumed,
                    pins_prefix,
                    arrival,
                    deadline)

QUIRE_LOGGED_FIELDS(StepHeader, scheduler_incarnation, group_epoch, step_id)
QUIRE_LOGGED_FIELDS(TokenLogprob, token_id, logprob)
QUIRE_LOGGED_FIELDS(SampledToken, handle, token_id, logprob, finite, top_logprobs)
QUIRE_LOGGED_FIELDS(PromptLogprobs, first_position, num_top, logprobs, top)
QUIRE_LOGGED_FIELDS(ScoredSlice, handle, prompt)
QUIRE_LOGGED_FIELDS(StepTimings, build_us, forward_us, sample_us, collective_us)
QUIRE_LOGGED_FIELDS(StepResult,
                    header,
                    plan_digest,
                    sampled,
                    scored,
                    failed_swap_ins,
                    swaps_done_step_id,
                    row_hash,
                    timings)

// The next three types are output events, of which a log holds only a digest.
QUIRE_LOGGED_FIELDS(TokenCommitted,
                    request_id,
                    sequence_index,
                    token_index,
                    token_id,
                    logprob,
                    top_logprobs,
                    num_cached_prompt_tokens)
QUIRE_LOGGED_FIELDS(PromptScored, request_id, prompt)
QUIRE_LOGGED_FIELDS(SequenceFinished,
                    request_id,
                    sequence_index,
                    reason,
                    num_output_tokens,
                    is_last_of_request,
                    beam_score)

}  // namespace quire

#endif  // QUIRE_SCHEDULER_STEP_LOG_LOGGED_FIELDS_H_
