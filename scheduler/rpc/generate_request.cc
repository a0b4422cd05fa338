#include "scheduler/rpc/generate_request.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/sampling_params_check.h"
#include "common/wire/id_text.h"
#include "scheduler/rpc/resume_check.h"
#include "scheduler/text/utf8.h"

namespace quire {
namespace {

absl::Status NoTokenizer(std::string_view field) {
  return Error(absl::StatusCode::kFailedPrecondition,
               "NO_TOKENIZER",
               absl::StrCat(ToAbsl(field), ": the model has no tokenizer; use token_ids"));
}

EarlyStopping EarlyStoppingOf(v1::EarlyStopping value) {
  switch (value) {
    case v1::EARLY_STOPPING_TRUE:
      return EarlyStopping::kTrue;
    case v1::EARLY_STOPPING_NEVER:
      return EarlyStopping::kNever;
    default:
      return EarlyStopping::kFalse;
  }
}

absl::Status CheckId(std::string_view reason,
                     std::string_view field,
                     std::string_view id,
                     size_t max_bytes) {
  if (id.size() > max_bytes) {
    return InvalidArgument(reason,
                           LimitMessage(field,
                                        "too many bytes",
                                        static_cast<int64_t>(id.size()),
                                        static_cast<int64_t>(max_bytes)));
  }
  if (!IsIdText(id)) {
    return InvalidArgument(
        reason,
        absl::StrCat(ToAbsl(field), ": may contain only letters, digits, '.', '_' and '-'"));
  }
  return absl::OkStatus();
}

absl::Status SetPromptSource(const v1::GenerateRequest& message,
                             const RequestRules& rules,
                             GenerateSpec* spec) {
  if (message.has_text() && message.has_token_ids()) {
    return InvalidArgument("CONFLICTING_FIELDS", "prompt: text and token_ids are both set");
  }
  if (!message.has_text() && !message.has_token_ids()) {
    return InvalidArgument("MISSING_FIELD", "prompt: neither text nor token_ids is set");
  }
  spec->add_special_tokens = !message.has_add_special_tokens() || message.add_special_tokens();
  spec->parse_special_tokens = message.parse_special_tokens();
  if (message.has_text()) {
    QUIRE_RETURN_IF_ERROR(CheckText(message.text(), *rules.model));
    spec->text = message.text();
    return absl::OkStatus();
  }
  const auto& ids = message.token_ids().ids();
  if (ids.size() >= rules.max_model_len) {  // checked before the ids are copied
    return InvalidArgument(
        "PROMPT_TOO_LONG",
        LimitMessage("token_ids", "leave no room for output", ids.size(), rules.max_model_len - 1));
  }
  spec->token_ids.assign(ids.begin(), ids.end());
  return CheckTokenIds("token_ids", spec->token_ids, *rules.model);
}

absl::Status SetSampling(const v1::GenerateRequest& message,
                         const RequestRules& rules,
                         GenerateSpec* spec) {
  const v1::SamplingParams& asked = message.sampling();
  SamplingParams& params = spec->request.sampling;
  params = DefaultSampling(*rules.model);
  params.temperature = asked.has_temperature() ? asked.temperature() : params.temperature;
  params.top_k = asked.has_top_k() ? asked.top_k() : params.top_k;
  params.top_p = asked.has_top_p() ? asked.top_p() : params.top_p;
  params.min_p = asked.has_min_p() ? asked.min_p() : params.min_p;
  params.repetition_penalty =
      asked.has_repetition_penalty() ? asked.repetition_penalty() : params.repetition_penalty;
  params.presence_penalty = asked.presence_penalty();
  params.frequency_penalty = asked.frequency_penalty();
  if (asked.logit_bias_size() > kMaxLogitBias) {  // checked before the entries are copied
    return InvalidArgument(
        "LOGIT_BIAS",
        LimitMessage(
            "sampling.logit_bias", "too many entries", asked.logit_bias_size(), kMaxLogitBias));
  }
  for (const v1::LogitBias& bias : asked.logit_bias()) {
    params.logit_bias.emplace_back(bias.token_id(), bias.bias());
  }
  params.seed = asked.has_seed() ? asked.seed() : rules.fresh_seed;
  if (message.response().has_logprobs()) {
    params.num_logprobs = message.response().logprobs();
    if (params.num_logprobs < 0 || params.num_logprobs > kMaxLogprobs) {
      return InvalidArgument(
          "LOGPROBS_RANGE",
          LimitMessage(
              "response.logprobs", "must be in [0, limit]", params.num_logprobs, kMaxLogprobs));
    }
  }
  if (message.response().has_prompt_logprobs()) {
    params.num_prompt_logprobs = message.response().prompt_logprobs();
    if (params.num_prompt_logprobs < 0 || params.num_prompt_logprobs > kMaxLogprobs) {
      return InvalidArgument("LOGPROBS_RANGE",
                             LimitMessage("response.prompt_logprobs",
                                          "must be in [0, limit]",
                                          params.num_prompt_logprobs,
                                          kMaxLogprobs));
    }
  }
  return Validate(params, rules.model->config.vocab_size);
}

// Sequences of best_of are ranked by mean log-probability, so the worker must report
// log-probabilities.
absl::Status SetBestOf(const v1::GenerateRequest& message, GenerateSpec* spec) {
  const int32_t n = spec->request.num_sequences;
  const int32_t best_of = message.has_best_of() ? message.best_of() : n;
  if (best_of < n || best_of > kMaxSequencesPerRequest) {
    return InvalidArgument(
        "BEST_OF_RANGE",
        LimitMessage("best_of", "must be in [n, limit]", best_of, kMaxSequencesPerRequest));
  }
  spec->request.num_sequences = best_of;
  if (best_of > n) {
    spec->output.num_best = n;
    spec->request.sampling.num_logprobs = std::max(spec->request.sampling.num_logprobs, 0);
  }
  return absl::OkStatus();
}

absl::Status SetNumSequences(const v1::GenerateRequest& message, GenerateSpec* spec) {
  const int32_t n = message.has_n() ? message.n() : 1;
  if (n < 1 || n > kMaxSequencesPerRequest) {
    return InvalidArgument("N_RANGE",
                           LimitMessage("n", "must be in [1, limit]", n, kMaxSequencesPerRequest));
  }
  spec->request.num_sequences = n;
  return SetBestOf(message, spec);
}

// Refuses all fields that beam search does not support. Sampling parameters are among them, because
// beam search ranks by the model's own probabilities.
absl::Status SetBeamSampling(const v1::GenerateRequest& message,
                             const RequestRules& rules,
                             GenerateSpec* spec) {
  const v1::SamplingParams& asked = message.sampling();
  const std::pair<bool, std::string_view> conflicts[] = {
      {asked.has_temperature() && asked.temperature() > 0.0F, "sampling.temperature"},
      {asked.has_top_k() && asked.top_k() != 0, "sampling.top_k"},
      {asked.has_top_p(), "sampling.top_p"},
      {asked.has_min_p(), "sampling.min_p"},
      {asked.has_repetition_penalty(), "sampling.repetition_penalty"},
      {asked.has_presence_penalty(), "sampling.presence_penalty"},
      {asked.has_frequency_penalty(), "sampling.frequency_penalty"},
      {asked.logit_bias_size() > 0, "sampling.logit_bias"},
      {message.stopping().stop_size() > 0, "stopping.stop"},
      {message.response().has_logprobs(), "response.logprobs"},
      {message.response().has_prompt_logprobs(), "response.prompt_logprobs"},
      {message.has_best_of(), "best_of"},
  };
  for (const auto& [is_set, field] : conflicts) {
    if (is_set) {
      return InvalidArgument("CONFLICTING_FIELDS",
                             absl::StrCat(ToAbsl(field), ": cannot be combined with beam_search"));
    }
  }
  spec->request.sampling.temperature = 0.0F;
  spec->request.sampling.seed = asked.has_seed() ? asked.seed() : rules.fresh_seed;
  return absl::OkStatus();
}

absl::Status SetBeamSearch(const v1::BeamSearch& asked,
                           const RequestRules& rules,
                           GenerateSpec* spec) {
  Request& request = spec->request;
  const int32_t num_beams = asked.num_beams();
  if (num_beams < std::max(1, request.num_sequences) || num_beams > BeamSearchParams::kMaxBeams) {
    return InvalidArgument("BEAM_SEARCH",
                           LimitMessage("beam_search.num_beams",
                                        "must be in [n, limit]",
                                        num_beams,
                                        BeamSearchParams::kMaxBeams));
  }
  const double penalty = asked.has_length_penalty() ? double{asked.length_penalty()} : 1.0;
  if (!(std::abs(penalty) <= BeamSearchParams::kMaxLengthPenalty)) {  // refuses NaN too
    return InvalidArgument("BEAM_SEARCH", "beam_search.length_penalty: must be in [-5, 5]");
  }
  if (!v1::EarlyStopping_IsValid(asked.early_stopping())) {
    return InvalidArgument("ENUM_VALUE", "beam_search.early_stopping: unknown value");
  }
  const auto num_stops = static_cast<int32_t>(request.stop_token_ids.size());
  const int32_t max_candidates =
      std::min(BeamSearchParams::kMaxCandidates, rules.model->config.vocab_size);
  if (num_beams + num_stops > max_candidates) {
    return InvalidArgument("BEAM_SEARCH",
                           LimitMessage("beam_search.num_beams",
                                        "too many beams and stop tokens together",
                                        num_beams + num_stops,
                                        max_candidates));
  }
  request.beam_search = {.num_beams = num_beams,
                         .length_penalty = penalty,
                         .early_stopping = EarlyStoppingOf(asked.early_stopping())};
  request.sampling.num_logprobs = num_beams + num_stops;
  return absl::OkStatus();
}

absl::Status SetStopStrings(const v1::StoppingParams& asked,
                            const RequestRules& rules,
                            GenerateSpec* spec) {
  spec->output.include_stop_in_output = asked.include_stop_in_output();
  if (asked.stop_size() == 0) {
    return absl::OkStatus();
  }
  if (rules.model->tokenizer == nullptr) {
    return NoTokenizer("stopping.stop");
  }
  spec->output.stop_strings.assign(asked.stop().begin(), asked.stop().end());
  QUIRE_ASSIGN_OR_RETURN(
      spec->output.stop_matcher,
      StopMatcher::Create(spec->output.stop_strings, asked.include_stop_in_output()));
  return absl::OkStatus();
}

absl::Status SetStopTokens(const v1::StoppingParams& asked,
                           const RequestRules& rules,
                           GenerateSpec* spec) {
  if (asked.stop_token_ids_size() > kMaxStopTokenIds) {
    return InvalidArgument("STOP_LIMIT",
                           LimitMessage("stopping.stop_token_ids",
                                        "too many ids",
                                        asked.stop_token_ids_size(),
                                        kMaxStopTokenIds));
  }
  std::vector<TokenId>& stops = spec->request.stop_token_ids;
  stops.assign(asked.stop_token_ids().begin(), asked.stop_token_ids().end());
  const int32_t vocab_size = rules.model->config.vocab_size;
  for (TokenId id : stops) {
    if (id < 0 || id >= vocab_size) {
      return InvalidArgument(
          "TOKEN_ID_RANGE",
          LimitMessage("stopping.stop_token_ids", "must be in [0, limit]", id, vocab_size - 1));
    }
  }
  if (!asked.ignore_eos()) {
    stops.insert(stops.end(), rules.model->eos_token_ids.begin(), rules.model->eos_token_ids.end());
  }
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  return absl::OkStatus();
}

absl::Status SetLengths(const v1::StoppingParams& asked,
                        const RequestRules& rules,
                        GenerateSpec* spec) {
  if (asked.has_max_tokens()) {
    if (asked.max_tokens() < 1 || asked.max_tokens() > rules.max_model_len) {
      return InvalidArgument("MAX_TOKENS_RANGE",
                             LimitMessage("stopping.max_tokens",
                                          "must be in [1, limit]",
                                          asked.max_tokens(),
                                          rules.max_model_len));
    }
    spec->max_tokens = asked.max_tokens();
  }
  const int32_t min_tokens = asked.min_tokens();
  const int32_t most = spec->max_tokens.value_or(rules.max_model_len);
  if (min_tokens < 0 || min_tokens > most) {
    return InvalidArgument(
        "MIN_TOKENS_RANGE",
        LimitMessage("stopping.min_tokens", "must be in [0, max_tokens]", min_tokens, most));
  }
  SamplingParams& params = spec->request.sampling;
  params.min_tokens = min_tokens;
  spec->output.min_tokens = min_tokens;
  if (min_tokens > 0) {
    params.banned_before_min_tokens = spec->request.stop_token_ids;
    if (static_cast<int64_t>(params.banned_before_min_tokens.size()) >=
        rules.model->config.vocab_size) {
      return InvalidArgument(
          "NO_TOKEN_ALLOWED",
          "stopping.stop_token_ids: bans every token of the model until min_tokens");
    }
  }
  return absl::OkStatus();
}

absl::Status SetOutput(const v1::ResponseParams& asked,
                       const RequestRules& rules,
                       GenerateSpec* spec) {
  OutputOptions& output = spec->output;
  output.tokenizer = rules.model->tokenizer.get();
  output.return_text = asked.has_return_text() ? asked.return_text() : output.tokenizer != nullptr;
  if (output.return_text && output.tokenizer == nullptr) {
    return NoTokenizer("response.return_text");
  }
  output.skip_special_tokens = !asked.has_skip_special_tokens() || asked.skip_special_tokens();
  output.return_logprobs = asked.has_logprobs();
  return absl::OkStatus();
}

absl::Status SetCaching(const v1::GenerateRequest& message,
                        const RequestRules& rules,
                        GenerateSpec* spec) {
  QUIRE_RETURN_IF_ERROR(CheckCacheSalt(message.cache_salt()));
  if (rules.requires_cache_salt && message.cache_salt().empty() && !message.bypass_prefix_cache()) {
    return InvalidArgument("CACHE_SALT",
                           "cache_salt: must be set (server runs with --require-cache-salt), or "
                           "set bypass_prefix_cache");
  }
  spec->request.cache_salt = message.cache_salt();
  spec->request.bypasses_prefix_cache = message.bypass_prefix_cache();
  return absl::OkStatus();
}

// Bounds the memory of a stream whose client does not read. REQUIRES: the prompt is set.
absl::Status CheckPromptLogprobs(const Request& request) {
  const int64_t num_tokens = request.num_prompt_logprobs();
  const int64_t num_numbers = num_tokens * (1 + request.sampling.num_prompt_logprobs);
  if (num_numbers > kMaxPromptLogprobs) {
    return InvalidArgument("LOGPROBS_RANGE",
                           LimitMessage("response.prompt_logprobs",
                                        "the prompt is too long for so many, see generation.proto",
                                        num_numbers,
                                        kMaxPromptLogprobs));
  }
  if (request.num_known_prompt_logprobs > num_tokens) {
    return InvalidArgument("RESUME",
                           LimitMessage("resume.num_prompt_logprobs",
                                        "exceeds the log-probabilities of the request",
                                        request.num_known_prompt_logprobs,
                                        num_tokens));
  }
  return absl::OkStatus();
}

absl::Status SetTurn(const v1::GenerateRequest& message,
                     const RequestRules& rules,
                     GenerateSpec* spec) {
  if (message.has_priority() && !rules.has_priorities) {
    return InvalidArgument(
        "PRIORITY",
        "priority: can be set only if the server runs with --scheduling-policy=priority");
  }
  if (std::abs(int64_t{message.priority()}) > kMaxPriority) {
    return InvalidArgument(
        "PRIORITY",
        LimitMessage("priority", "must be in [-limit, limit]", message.priority(), kMaxPriority));
  }
  spec->request.priority = message.priority();
  QUIRE_RETURN_IF_ERROR(CheckId("TENANT", "tenant", message.tenant(), kMaxTenantBytes));
  if (!rules.tenant.empty() && !message.tenant().empty() && message.tenant() != rules.tenant) {
    return Error(absl::StatusCode::kPermissionDenied,
                 "TENANT_OF_KEY",
                 "tenant: differs from the tenant of the API key");
  }
  spec->request.tenant = rules.tenant.empty() ? message.tenant() : rules.tenant;
  return absl::OkStatus();
}

}  // namespace

bool GenerateSpec::has_all_ended() const {
  return !request.resumed.empty() &&
         std::ranges::all_of(request.resumed, [](const auto& each) { return each.has_ended; });
}

std::string LimitMessage(std::string_view field,
                         std::string_view rule,
                         int64_t got,
                         int64_t limit) {
  return absl::StrCat(ToAbsl(field), ": ", ToAbsl(rule), " (got ", got, ", limit ", limit, ")");
}

absl::Status CheckRequestId(std::string_view id) {
  return CheckId("REQUEST_ID", "request_id", id, kMaxRequestIdBytes);
}

absl::Status CheckModelName(std::string_view name, const ServedModel& model) {
  const bool has_control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  if (name.size() > kMaxModelNameBytes || has_control) {
    return InvalidArgument("MODEL_NAME",
                           "model: must have at most 256 bytes and no control characters");
  }
  if (name.empty() ||
      std::find(model.names.begin(), model.names.end(), name) != model.names.end()) {
    return absl::OkStatus();
  }
  return Error(
      absl::StatusCode::kNotFound, "MODEL", "model: this server serves no model of that name");
}

absl::Status CheckCacheSalt(std::string_view salt) {
  if (salt.size() <= kMaxCacheSaltBytes) {
    return absl::OkStatus();
  }
  return InvalidArgument("CACHE_SALT",
                         LimitMessage("cache_salt",
                                      "too many bytes",
                                      static_cast<int64_t>(salt.size()),
                                      static_cast<int64_t>(kMaxCacheSaltBytes)));
}

absl::Status CheckText(std::string_view text, const ServedModel& model) {
  if (model.tokenizer == nullptr) {
    return NoTokenizer("text");
  }
  if (text.size() > kMaxPromptBytes) {
    return InvalidArgument("PROMPT_BYTES",
                           LimitMessage("text",
                                        "too many bytes",
                                        static_cast<int64_t>(text.size()),
                                        static_cast<int64_t>(kMaxPromptBytes)));
  }
  return CheckUtf8("text", text);
}

absl::Status CheckTokenIds(std::string_view field,
                           const std::vector<TokenId>& ids,
                           const ServedModel& model) {
  for (TokenId id : ids) {
    const bool known = id >= 0 && id < model.config.vocab_size &&
                       (model.tokenizer == nullptr || model.tokenizer->IsValidId(id));
    if (!known) {
      return InvalidArgument(
          "TOKEN_ID_RANGE",
          LimitMessage(field, "not a token of the model", id, model.config.vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GenerateSpec> CheckGenerateRequest(const v1::GenerateRequest& message,
                                                  const RequestRules& rules) {
  GenerateSpec spec;
  QUIRE_RETURN_IF_ERROR(CheckRequestId(message.request_id()));
  QUIRE_RETURN_IF_ERROR(CheckModelName(message.model(), *rules.model));
  if (message.resume().has_max_tokens()) {
    // Checks resume.max_tokens first: otherwise other checks could answer INVALID_ARGUMENT instead
    // of CONTEXT.
    QUIRE_RETURN_IF_ERROR(CheckResumedLength(message, rules));
  }
  QUIRE_RETURN_IF_ERROR(SetPromptSource(message, rules, &spec));
  if (message.has_beam_search()) {
    QUIRE_RETURN_IF_ERROR(SetBeamSampling(message, rules, &spec));
  } else {
    QUIRE_RETURN_IF_ERROR(SetSampling(message, rules, &spec));
  }
  QUIRE_RETURN_IF_ERROR(SetNumSequences(message, &spec));
  QUIRE_RETURN_IF_ERROR(SetStopStrings(message.stopping(), rules, &spec));
  QUIRE_RETURN_IF_ERROR(SetStopTokens(message.stopping(), rules, &spec));
  QUIRE_RETURN_IF_ERROR(SetLengths(message.stopping(), rules, &spec));
  if (message.has_beam_search()) {
    QUIRE_RETURN_IF_ERROR(SetBeamSearch(message.beam_search(), rules, &spec));
  }
  QUIRE_RETURN_IF_ERROR(SetOutput(message.response(), rules, &spec));
  QUIRE_RETURN_IF_ERROR(SetCaching(message, rules, &spec));
  QUIRE_RETURN_IF_ERROR(SetTurn(message, rules, &spec));
  if (message.has_timeout_ms()) {
    if (message.timeout_ms() <= 0) {
      return InvalidArgument("TIMEOUT", "timeout_ms: must be above 0");
    }
    spec.timeout_ms = message.timeout_ms();
  }
  if (message.has_resume()) {
    QUIRE_RETURN_IF_ERROR(SetResume(message, rules, &spec));
  }
  return spec;
}

absl::Status SetPrompt(std::vector<TokenId> prompt,
                       const RequestRules& rules,
                       const StopCheck& stop_check,
                       GenerateSpec* spec) {
  const auto length = static_cast<int64_t>(prompt.size());
  if (spec->is_length_promised) {
    QUIRE_RETURN_IF_ERROR(CheckPromisedLength(length + *spec->max_tokens, rules));
  }
  if (length == 0) {
    return InvalidArgument("EMPTY_PROMPT", "prompt: holds no token");
  }
  if (length >= rules.max_model_len) {
    return InvalidArgument(
        "PROMPT_TOO_LONG",
        LimitMessage(
            "prompt", "its tokens leave no room for output", length, rules.max_model_len - 1));
  }
  const auto room = static_cast<int32_t>(rules.max_model_len - length);
  if (spec->max_tokens.value_or(1) > room) {
    return InvalidArgument("CONTEXT_EXCEEDED",
                           LimitMessage("stopping.max_tokens",
                                        "prompt and output exceed the context",
                                        length + *spec->max_tokens,
                                        rules.max_model_len));
  }
  spec->request.max_tokens = spec->max_tokens.value_or(room);
  if (spec->request.sampling.min_tokens > spec->request.max_tokens) {
    return InvalidArgument("MIN_TOKENS_RANGE",
                           LimitMessage("stopping.min_tokens",
                                        "must be in [0, max_tokens]",
                                        spec->request.sampling.min_tokens,
                                        spec->request.max_tokens));
  }
  spec->request.prompt_token_ids = std::move(prompt);
  QUIRE_RETURN_IF_ERROR(CheckPromptLogprobs(spec->request));
  return ReplayResumed(stop_check, spec);
}

}  // namespace quire
