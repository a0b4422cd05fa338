#include "deploy/gateway/openai/sampling_fields.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "common/base/string_view.h"

namespace quire {
namespace {

// The same bounds as in the scheduler. The gateway copies these fields for each prompt, so without
// a check 128 prompts would multiply the memory of a long list.
constexpr int32_t kMaxChoices = 16;
constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopStringBytes = 256;
constexpr size_t kMaxStopTokenIds = 64;
constexpr size_t kMaxLogitBias = 300;
constexpr size_t kMaxCacheSaltBytes = 128;
constexpr size_t kMaxModelNameBytes = 256;
// The scheduler takes ids of up to 128 bytes. The gateway adds up to 13 bytes: "chatcmpl-" and the
// number of a prompt ("-127").
constexpr size_t kMaxRequestIdBytes = 100;

// The scheduler does not implement these fields, and each would change tokens or text.
constexpr std::string_view kRefusedFields[] = {
    "allowed_token_ids",
    "bad_words",
    "guided_choice",
    "guided_decoding_backend",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "guided_whitespace_pattern",
    "kv_transfer_params",
    "logits_processors",
    "mm_processor_kwargs",
    "structural_tag",
    "structured_outputs",
    "truncate_prompt_tokens",
    "vllm_xargs",
};

bool IsIdCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

std::string ReadRequestId(std::string_view default_request_id, JsonFields& fields) {
  const std::optional<std::string> id = fields.Text("request_id");
  if (!id.has_value()) {
    return std::string(default_request_id);
  }
  if (id->empty() || id->size() > kMaxRequestIdBytes || !std::ranges::all_of(*id, IsIdCharacter)) {
    fields.Fail("REQUEST_ID", "request_id", "must be 1 to 100 letters, digits, '.', '_' and '-'");
    return "";
  }
  return *id;
}

void RefuseUnknownMeanings(JsonFields& fields) {
  for (const std::string_view name : kRefusedFields) {
    fields.Refuse(name);
  }
  if (fields.Bool("use_beam_search").value_or(false)) {
    fields.Refuse("use_beam_search");
  }
  if (!fields.Bool("spaces_between_special_tokens").value_or(true)) {
    fields.Refuse("spaces_between_special_tokens");
  }
  if (OrderedJson* const format = fields.Object("response_format"); format != nullptr) {
    JsonFields members(*format, "response_format.");
    const std::optional<std::string> type = members.Text("type");
    if (!type.has_value()) {
      members.Fail("MISSING_FIELD", "type", "must be set");
    } else if (*type != "text") {
      members.Refuse("type");
    }
    fields.Keep(members.status());
  }
}

void ReadLogitBias(JsonFields& fields, v1::SamplingParams& sampling) {
  const OrderedJson* const biases = fields.Object("logit_bias");
  if (biases == nullptr) {
    return;
  }
  if (biases->size() > kMaxLogitBias) {
    fields.Fail("LOGIT_BIAS", "logit_bias", "has too many tokens (limit 300)");
    return;
  }
  for (const auto& [token, bias] : biases->items()) {
    int32_t token_id = 0;
    if (!absl::SimpleAtoi(token, &token_id) || !bias.is_number()) {
      fields.Fail("LOGIT_BIAS", "logit_bias", "must map token ids to numbers");
      return;
    }
    v1::LogitBias& entry = *sampling.add_logit_bias();
    entry.set_token_id(token_id);
    entry.set_bias(static_cast<float>(std::clamp(bias.get<double>(), -100.0, 100.0)));
  }
}

void ReadSampling(JsonFields& fields, v1::SamplingParams& sampling) {
  if (const auto value = fields.Number("temperature")) {
    sampling.set_temperature(*value);
  }
  if (const auto value = fields.Int("top_k")) {
    sampling.set_top_k(*value == -1 ? 0 : *value);
  }
  if (const auto value = fields.Number("min_p")) {
    sampling.set_min_p(*value);
  }
  if (const auto value = fields.Number("repetition_penalty")) {
    sampling.set_repetition_penalty(*value);
  }
  if (const auto value = fields.Number("presence_penalty")) {
    sampling.set_presence_penalty(*value);
  }
  if (const auto value = fields.Number("frequency_penalty")) {
    sampling.set_frequency_penalty(*value);
  }
  if (const auto top_p = fields.Number("top_p")) {
    if (*top_p == 0.0F) {
      sampling.set_temperature(0.0F);  // top_p 0 leaves only the likeliest token
    } else {
      sampling.set_top_p(*top_p);
    }
  }
  if (const auto seed = fields.Int64("seed"); seed.has_value() && *seed != -1) {
    sampling.set_seed(static_cast<uint64_t>(*seed));
  }
  ReadLogitBias(fields, sampling);
}

void ReadStopStrings(JsonFields& fields, v1::StoppingParams& stopping) {
  const OrderedJson* const stop = fields.Any("stop");
  if (stop == nullptr) {
    return;
  }
  if (stop->is_string()) {
    stopping.add_stop(stop->get<std::string>());
  } else if (!stop->is_array()) {
    fields.Fail("FIELD_TYPE", "stop", "must be a string or an array of strings");
    return;
  } else if (stop->size() > kMaxStopStrings) {
    fields.Fail("STOP_LIMIT", "stop", "has too many strings (limit 16)");
    return;
  } else {
    for (const OrderedJson& item : *stop) {
      if (!item.is_string()) {
        fields.Fail("FIELD_TYPE", "stop", "must hold strings only");
        return;
      }
      stopping.add_stop(item.get<std::string>());
    }
  }
  for (const std::string& text : stopping.stop()) {
    if (text.empty() || text.size() > kMaxStopStringBytes) {
      fields.Fail("STOP_LIMIT", "stop", "each string must have 1 to 256 bytes");
    }
  }
}

void ReadStopping(JsonFields& fields, v1::StoppingParams& stopping, AnswerOptions& options) {
  ReadStopStrings(fields, stopping);
  options.stop_token_ids = fields.Ints("stop_token_ids", kMaxStopTokenIds);
  stopping.mutable_stop_token_ids()->Add(options.stop_token_ids.begin(),
                                         options.stop_token_ids.end());
  if (const auto value = fields.Int("min_tokens")) {
    stopping.set_min_tokens(*value);
  }
  stopping.set_ignore_eos(fields.Bool("ignore_eos").value_or(false));
  stopping.set_include_stop_in_output(fields.Bool("include_stop_str_in_output").value_or(false));
}

void ReadChoices(JsonFields& fields, v1::GenerateRequest& request, AnswerOptions& options) {
  const int32_t n = fields.Int("n").value_or(1);
  if (n < 1 || n > kMaxChoices) {
    fields.Fail("N_RANGE", "n", "must be in [1, 16]");
    return;
  }
  const std::optional<int32_t> best_of = fields.Int("best_of");
  if (best_of.has_value() && (*best_of < n || *best_of > kMaxChoices)) {
    fields.Fail("BEST_OF_RANGE", "best_of", "must be in [n, 16]");
    return;
  }
  options.num_choices_per_prompt = n;
  request.set_n(n);
  if (best_of.has_value()) {
    request.set_best_of(*best_of);
  }
}

void ReadStream(JsonFields& fields, AnswerOptions& options) {
  options.stream = fields.Bool("stream").value_or(false);
  OrderedJson* const stream_options = fields.Object("stream_options");
  if (stream_options == nullptr) {
    return;
  }
  if (!options.stream && !stream_options->empty()) {
    fields.Fail("CONFLICTING_FIELDS", "stream_options", "needs stream to be true");
    return;
  }
  JsonFields members(*stream_options, "stream_options.");
  options.include_usage = members.Bool("include_usage").value_or(true);
  options.continuous_usage =
      members.Bool("continuous_usage_stats").value_or(false) && options.include_usage;
  fields.Keep(members.status());
}

void ReadCaching(JsonFields& fields, v1::GenerateRequest& request) {
  request.set_bypass_prefix_cache(fields.Bool("bypass_prefix_cache").value_or(false));
  const std::optional<std::string> salt = fields.Text("cache_salt");
  if (!salt.has_value()) {
    return;
  }
  if (salt->empty() || salt->size() > kMaxCacheSaltBytes) {
    fields.Fail("CACHE_SALT", "cache_salt", "must have 1 to 128 bytes");
    return;
  }
  request.set_cache_salt(*salt);
}

}  // namespace

std::string ReadModel(JsonFields& fields) {
  std::string model = fields.Text("model").value_or("");
  if (model.size() > kMaxModelNameBytes) {
    fields.Fail("MODEL_NAME", "model", "must have at most 256 bytes");
  }
  return model;
}

void ReadPromptLogprobs(JsonFields& fields, v1::GenerateRequest& request, AnswerOptions& options) {
  const std::optional<int32_t> number = fields.Int("prompt_logprobs");
  if (!number.has_value()) {
    return;
  }
  if (!options.stream) {
    request.mutable_response()->set_prompt_logprobs(*number);
    options.has_prompt_logprobs = true;
  } else if (*number != 0) {
    fields.Fail("CONFLICTING_FIELDS", "prompt_logprobs", "must be 0 or unset in a stream");
  }
}

void ReadSharedFields(std::string_view id_prefix,
                      std::string_view default_request_id,
                      JsonFields& fields,
                      v1::GenerateRequest& request,
                      AnswerOptions& options) {
  options.model = ReadModel(fields);
  request.set_model(options.model);
  options.id = absl::StrCat(ToAbsl(id_prefix), ReadRequestId(default_request_id, fields));
  request.set_request_id(options.id);
  RefuseUnknownMeanings(fields);
  ReadSampling(fields, *request.mutable_sampling());
  ReadStopping(fields, *request.mutable_stopping(), options);
  ReadChoices(fields, request, options);
  ReadStream(fields, options);
  ReadCaching(fields, request);
  if (const auto priority = fields.Int("priority"); priority.value_or(0) != 0) {
    request.set_priority(*priority);
  }
  request.mutable_response()->set_skip_special_tokens(
      fields.Bool("skip_special_tokens").value_or(true));
  // Names of special tokens in a text become special tokens, as in Hugging Face's tokenizers.
  request.set_parse_special_tokens(true);
  options.returns_token_ids = fields.Bool("return_token_ids").value_or(false);
  options.names_tokens_by_id = fields.Bool("return_tokens_as_token_ids").value_or(false);
  fields.Text("user");  // refuses another type; the value has no effect
}

}  // namespace quire
