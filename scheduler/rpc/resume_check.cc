#include "scheduler/rpc/resume_check.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "scheduler/core/admission.h"

namespace quire {
namespace {

constexpr char kSequences[] = "resume.sequences";
constexpr size_t kTokensPerStopCheck = 4096;  // replaying so many takes at most 1 ms

absl::Status Refuse(std::string_view rule, int64_t got, int64_t limit) {
  return InvalidArgument("RESUME", LimitMessage(kSequences, rule, got, limit));
}

// Gives *sampling the seed of the broken stream. With another seed the sequences would continue
// with other random numbers.
absl::Status SetSeed(const v1::GenerateRequest& message, SamplingParams* sampling) {
  const v1::Resume& resume = message.resume();
  if (resume.has_seed() && message.sampling().has_seed() &&
      resume.seed() != message.sampling().seed()) {
    return InvalidArgument("CONFLICTING_FIELDS", "resume.seed: differs from sampling.seed");
  }
  if (resume.has_seed()) {
    sampling->seed = resume.seed();
    return absl::OkStatus();
  }
  const bool needs_seed = resume.sequences_size() > 0 && !sampling->is_greedy();
  return needs_seed && !message.sampling().has_seed()
             ? InvalidArgument("MISSING_FIELD", "resume.seed: required to resume sampled sequences")
             : absl::OkStatus();
}

absl::Status CheckFingerprint(const v1::Resume& resume, const RequestRules& rules) {
  const std::string& fingerprint = resume.determinism_fingerprint();
  if (fingerprint.empty()) {
    return resume.sequences_size() == 0
               ? absl::OkStatus()
               : InvalidArgument(
                     "MISSING_FIELD",
                     "resume.determinism_fingerprint: required if resume.sequences is set");
  }
  if (fingerprint == rules.determinism_fingerprint) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kFailedPrecondition,
               "FINGERPRINT",
               absl::StrCat("resume.determinism_fingerprint: this server could compute different "
                            "tokens; its fingerprint is ",
                            rules.determinism_fingerprint));
}

absl::StatusOr<ResumedSequence> SequenceOf(const v1::ResumedSequence& from,
                                           const RequestRules& rules,
                                           const std::vector<TokenId>& stop_token_ids) {
  ResumedSequence sequence{.token_ids = {}, .has_ended = from.has_ended()};
  if (sequence.has_ended) {
    return sequence;
  }
  if (from.token_ids_size() >= rules.max_model_len) {  // checked before the ids are copied
    return Refuse("a sequence has more tokens than the context allows",
                  from.token_ids_size(),
                  rules.max_model_len - 1);
  }
  sequence.token_ids.assign(from.token_ids().begin(), from.token_ids().end());
  // Unlike a prompt, output can hold an id that the tokenizer lacks, because the model can sample
  // such an id.
  const int32_t vocab_size = rules.model->config.vocab_size;
  for (TokenId id : sequence.token_ids) {
    if (id < 0 || id >= vocab_size) {
      return InvalidArgument(
          "TOKEN_ID_RANGE",
          LimitMessage(kSequences, "not a token of the model", id, vocab_size - 1));
    }
  }
  const auto ends = [&stop_token_ids](TokenId id) {
    return std::ranges::binary_search(stop_token_ids, id);
  };
  if (std::ranges::any_of(sequence.token_ids, ends)) {
    return InvalidArgument("RESUME",
                           "resume.sequences: a sequence without has_ended contains a stop token");
  }
  return sequence;
}

absl::StatusOr<OutputText> Replay(const ResumedSequence& sequence,
                                  const GenerateSpec& spec,
                                  const StopCheck& stop_check) {
  OutputText text = spec.output.NewText(spec.request.prompt_token_ids);
  for (size_t i = 0; i < sequence.token_ids.size(); ++i) {
    if (i % kTokensPerStopCheck == 0) {
      QUIRE_RETURN_IF_ERROR(stop_check());
    }
    text.Push(sequence.token_ids[i]);
  }
  if (text.has_stopped()) {
    return InvalidArgument("RESUME",
                           "resume.sequences: a sequence without has_ended contains a stop string");
  }
  return text;
}

}  // namespace

absl::Status CheckResumedLength(const v1::GenerateRequest& message, const RequestRules& rules) {
  const int32_t max_tokens = message.resume().max_tokens();
  const int32_t most = message.stopping().has_max_tokens() ? message.stopping().max_tokens()
                                                           : std::numeric_limits<int32_t>::max();
  if (max_tokens < 1 || max_tokens > most) {
    return InvalidArgument(
        "RESUME",
        LimitMessage("resume.max_tokens", "must be in [1, stopping.max_tokens]", max_tokens, most));
  }
  const int64_t num_prompt_tokens = std::max(1, message.token_ids().ids_size());
  return CheckPromisedLength(num_prompt_tokens + max_tokens, rules);
}

absl::Status CheckPromisedLength(int64_t num_tokens, const RequestRules& rules) {
  if (num_tokens <= rules.max_model_len) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kFailedPrecondition,
               "CONTEXT",
               LimitMessage("resume.max_tokens",
                            "prompt and resume.max_tokens exceed this server's context",
                            num_tokens,
                            rules.max_model_len));
}

absl::Status SetResume(const v1::GenerateRequest& message,
                       const RequestRules& rules,
                       GenerateSpec* spec) {
  const v1::Resume& resume = message.resume();
  spec->request.is_resumed = true;
  spec->is_length_promised = resume.has_max_tokens();
  if (resume.has_max_tokens()) {
    spec->max_tokens = resume.max_tokens();
  }
  if (resume.num_prompt_logprobs() < 0) {
    return InvalidArgument("RESUME", "resume.num_prompt_logprobs: must not be negative");
  }
  if (resume.num_prompt_logprobs() > 0 && resume.sequences_size() == 0) {
    return InvalidArgument("MISSING_FIELD",
                           "resume.sequences: required if resume.num_prompt_logprobs is set");
  }
  spec->request.num_known_prompt_logprobs = resume.num_prompt_logprobs();
  QUIRE_RETURN_IF_ERROR(CheckFingerprint(resume, rules));
  QUIRE_RETURN_IF_ERROR(SetSeed(message, &spec->request.sampling));
  const int32_t n = spec->output.num_best.value_or(spec->request.num_sequences);
  if (resume.sequences_size() != 0 && resume.sequences_size() != n) {
    return Refuse("must have n entries or none", resume.sequences_size(), n);
  }
  for (const v1::ResumedSequence& from : resume.sequences()) {
    QUIRE_ASSIGN_OR_RETURN(ResumedSequence sequence,
                           SequenceOf(from, rules, spec->request.stop_token_ids));
    spec->request.resumed.push_back(std::move(sequence));
  }
  return absl::OkStatus();
}

absl::Status CheckResumedFit(const Request& request, const StepLimits& limits) {
  size_t longest = 0;
  for (const ResumedSequence& sequence : request.resumed) {
    longest = std::max(longest, sequence.token_ids.size());
  }
  if (longest == 0 || limits.num_blocks == 0) {
    return absl::OkStatus();
  }
  const int64_t num_blocks =
      NumBlocksAtMost(request.num_live_sequences(), static_cast<int64_t>(longest), limits);
  if (num_blocks < limits.num_blocks) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "EXCEEDS_CAPACITY",
      LimitMessage(
          kSequences, "need more blocks than the KV cache has", num_blocks, limits.num_blocks - 1));
}

absl::Status ReplayResumed(const StopCheck& stop_check, GenerateSpec* spec) {
  Request& request = spec->request;
  for (const ResumedSequence& sequence : request.resumed) {
    const auto num_tokens = static_cast<int32_t>(sequence.token_ids.size());
    if (num_tokens >= request.max_tokens) {
      return Refuse("a sequence without has_ended has reached max_tokens",
                    num_tokens,
                    request.max_tokens - 1);
    }
    QUIRE_ASSIGN_OR_RETURN(OutputText text, Replay(sequence, *spec, stop_check));
    spec->output.received.push_back(
        {.num_tokens = num_tokens, .has_ended = sequence.has_ended, .text = std::move(text)});
  }
  const bool starts_anew = request.beam_search.has_value() || spec->output.num_best.has_value();
  if (starts_anew) {
    request.resumed.clear();
  }
  return absl::OkStatus();
}

}  // namespace quire
