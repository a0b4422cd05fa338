#include "deploy/gateway/openai/completion_request.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/json/json.h"
#include "deploy/gateway/openai/json_fields.h"
#include "deploy/gateway/openai/sampling_fields.h"

namespace quire {
namespace {

constexpr size_t kMaxPrompts = 128;        // bounds the streams that one request opens
constexpr int32_t kDefaultMaxTokens = 16;  // as OpenAI and vLLM; a chat has no such default

// Reads a prompt of token ids. Returns false if there is none, or an item is no token id.
bool ReadTokenIds(const OrderedJson& array, PromptEcho& prompt) {
  prompt.token_ids.reserve(array.size());
  for (const OrderedJson& item : array) {
    const std::optional<int32_t> id = WholeNumber32(item);
    if (!id.has_value() || *id < 0) {
      return false;
    }
    prompt.token_ids.push_back(*id);
  }
  return !array.empty();
}

// Reads `prompt`: a text, an array of token ids, or an array of several prompts that are all texts
// or all arrays of token ids.
std::vector<PromptEcho> ReadPrompts(JsonFields& fields) {
  std::vector<PromptEcho> prompts;
  OrderedJson* const prompt = fields.Any("prompt");
  const auto is_empty_text = [](const OrderedJson& item) {
    return item.is_string() && item.get_ref<const std::string&>().empty();
  };
  if (prompt == nullptr || prompt->empty() || is_empty_text(*prompt) ||
      (prompt->is_array() && std::ranges::any_of(*prompt, is_empty_text))) {
    fields.Fail("MISSING_FIELD", "prompt", "must be set, and must not be empty");
    return prompts;
  }
  const bool is_list = prompt->is_array() && !prompt->front().is_number();
  if (is_list && prompt->size() > kMaxPrompts) {
    fields.Fail("FIELD_RANGE", "prompt", "holds too many prompts (limit 128)");
    return prompts;
  }
  const bool has_texts = (is_list ? prompt->front() : *prompt).is_string();
  prompts.resize(is_list ? prompt->size() : 1);
  for (size_t i = 0; i < prompts.size(); ++i) {
    OrderedJson& item = is_list ? (*prompt)[i] : *prompt;
    const bool is_valid =
        has_texts ? item.is_string() : item.is_array() && ReadTokenIds(item, prompts[i]);
    if (!is_valid) {
      fields.Fail("FIELD_TYPE",
                  "prompt",
                  "must be a string, an array of token ids, an array of strings, or an array of "
                  "arrays of token ids");
      return prompts;
    }
    if (has_texts) {
      prompts[i].text = std::move(item.get_ref<std::string&>());
    }
  }
  return prompts;
}

void ReadMaxTokens(JsonFields& fields, v1::GenerateRequest& request, AnswerOptions& options) {
  std::optional<int32_t> max_tokens = fields.Int("max_tokens");
  if (!max_tokens.has_value() && !fields.Has("max_tokens")) {
    max_tokens = kDefaultMaxTokens;
  }
  if (!max_tokens.has_value()) {
    return;  // null: as many as the context holds
  }
  options.omits_output = options.echo && *max_tokens == 0;
  request.mutable_stopping()->set_max_tokens(options.omits_output ? 1 : *max_tokens);
}

void ReadLogprobs(JsonFields& fields, v1::GenerateRequest& request, AnswerOptions& options) {
  options.num_top_logprobs = fields.Int("logprobs");
  if (options.num_top_logprobs.has_value()) {
    request.mutable_response()->set_logprobs(*options.num_top_logprobs);
  }
  ReadPromptLogprobs(fields, request, options);
  if (options.echo && options.num_top_logprobs.has_value() &&
      !request.response().has_prompt_logprobs()) {
    request.mutable_response()->set_prompt_logprobs(*options.num_top_logprobs);
  }
}

// Returns one request for each prompt. Moves the texts out of `options` if the answer does not
// repeat them.
std::vector<v1::GenerateRequest> RequestsFor(const v1::GenerateRequest& shared,
                                             AnswerOptions& options) {
  std::vector<v1::GenerateRequest> requests(options.prompts.size(), shared);
  for (size_t i = 0; i < requests.size(); ++i) {
    PromptEcho& prompt = options.prompts[i];
    if (requests.size() > 1) {
      requests[i].set_request_id(absl::StrCat(options.id, "-", i));
    }
    if (!prompt.token_ids.empty()) {
      requests[i].mutable_token_ids()->mutable_ids()->Add(prompt.token_ids.begin(),
                                                          prompt.token_ids.end());
    } else if (options.echo) {
      requests[i].set_text(prompt.text);
    } else {
      requests[i].set_text(std::move(prompt.text));
      prompt.text.clear();
    }
  }
  return requests;
}

}  // namespace

absl::StatusOr<CompletionRequest> ParseCompletionRequest(std::string_view body,
                                                         std::string_view request_id) {
  QUIRE_ASSIGN_OR_RETURN(OrderedJson json, ParseObject(body));
  JsonFields fields(json);
  CompletionRequest parsed;
  v1::GenerateRequest request;
  fields.Refuse("suffix");
  fields.Refuse("prompt_embeds");
  ReadSharedFields("cmpl-", request_id, fields, request, parsed.options);
  parsed.options.echo = fields.Bool("echo").value_or(false);
  ReadMaxTokens(fields, request, parsed.options);
  ReadLogprobs(fields, request, parsed.options);
  request.set_add_special_tokens(fields.Bool("add_special_tokens").value_or(true));
  parsed.options.prompts = ReadPrompts(fields);
  QUIRE_RETURN_IF_ERROR(fields.status());
  parsed.requests = RequestsFor(request, parsed.options);
  return parsed;
}

}  // namespace quire
