#include "deploy/gateway/openai/chat_request.h"

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/status_macros.h"
#include "common/json/json.h"
#include "deploy/gateway/openai/json_fields.h"
#include "deploy/gateway/openai/sampling_fields.h"

namespace quire {
namespace {

void RefuseOtherMedia(JsonFields& fields) {
  fields.Refuse("audio");
  const OrderedJson* const call = fields.Any("function_call");
  if (call == nullptr || *call != "none") {
    fields.Refuse("functions");
    fields.Refuse("function_call");
  }
  const OrderedJson* const modalities = fields.Array("modalities");
  if (modalities != nullptr && *modalities != OrderedJson::array({"text"})) {
    fields.Refuse("modalities");
  }
}

void ReadMaxTokens(JsonFields& fields, v1::GenerateRequest& request, AnswerOptions& options) {
  const std::optional<int32_t> old_name = fields.Int("max_tokens");
  const std::optional<int32_t> max_tokens = fields.Int("max_completion_tokens");
  if (max_tokens.value_or(1) < 1) {
    fields.Fail("MAX_TOKENS_RANGE", "max_completion_tokens", "must be at least 1");
  }
  if (max_tokens.has_value()) {
    options.max_tokens_name = "max_completion_tokens";
  }
  if (max_tokens.has_value() || old_name.has_value()) {
    request.mutable_stopping()->set_max_tokens(max_tokens.has_value() ? *max_tokens : *old_name);
  }
}

void ReadLogprobs(JsonFields& fields, v1::GenerateRequest& request, AnswerOptions& options) {
  const bool logprobs = fields.Bool("logprobs").value_or(false);
  const int32_t num_top = fields.Int("top_logprobs").value_or(0);
  if (num_top != 0 && !logprobs) {
    fields.Fail("CONFLICTING_FIELDS", "top_logprobs", "needs logprobs to be true");
  }
  if (logprobs) {
    options.num_top_logprobs = num_top;
    request.mutable_response()->set_logprobs(num_top);
  }
  ReadPromptLogprobs(fields, request, options);
}

// Returns a content as one string.
std::string TextOf(const OrderedJson& content) {
  if (content.is_string()) {
    return content.get<std::string>();
  }
  std::string joined;
  for (const OrderedJson& part : content) {
    if (!joined.empty()) {
      joined += '\n';
    }
    joined += part["text"].get<std::string>();
  }
  return joined;
}

// Sets the answer's role and the text that the answer repeats. Without a generation prompt the
// answer continues the last message, and takes the role of this message.
void SetBeginning(const ChatPrompt& prompt, bool echo, AnswerOptions& options) {
  const OrderedJson& last = prompt.messages().back();
  if (!prompt.variables["add_generation_prompt"].get<bool>()) {
    options.role = last["role"].get<std::string>();
  }
  options.prompts.resize(1);
  options.echo = echo && last["role"] == options.role;
  if (options.echo) {
    options.prompts[0].text = TextOf(last["content"]);
  }
}

}  // namespace

absl::StatusOr<ChatRequest> ParseChatRequest(std::string_view body,
                                             std::string_view request_id,
                                             ContentFormat format) {
  QUIRE_ASSIGN_OR_RETURN(OrderedJson json, ParseObject(body));
  JsonFields fields(json);
  ChatRequest parsed;
  RefuseOtherMedia(fields);
  ReadSharedFields("chatcmpl-", request_id, fields, parsed.request, parsed.options);
  ReadMaxTokens(fields, parsed.request, parsed.options);
  ReadLogprobs(fields, parsed.request, parsed.options);
  parsed.request.set_add_special_tokens(fields.Bool("add_special_tokens").value_or(false));
  const bool echo = fields.Bool("echo").value_or(false);
  parsed.prompt = ReadChatPrompt(fields, format);
  QUIRE_RETURN_IF_ERROR(fields.status());
  SetBeginning(parsed.prompt, echo, parsed.options);
  return parsed;
}

}  // namespace quire
