#include "deploy/gateway/openai/completion_response.h"

#include <cstddef>
#include <utility>

#include "deploy/gateway/openai/json_fields.h"

namespace quire {

CompletionResponse::CompletionResponse(AnswerOptions options, int64_t created, TokenText token_text)
    : Response(std::move(options), /*echoes_tokens=*/true, created, std::move(token_text)),
      characters_(this->options().prompts.size() *
                  static_cast<size_t>(this->options().num_choices_per_prompt)) {}

std::vector<OrderedJson> CompletionResponse::FirstEvents(int32_t /*prompt*/) { return {}; }

OrderedJson CompletionResponse::ChoiceJson(const ChoicePart& part) {
  OrderedJson choice = OrderedJson::object({{"index", part.index}, {"text", part.text}});
  OrderedJson logprobs;
  if (options().num_top_logprobs.has_value()) {
    logprobs = CompletionLogprobs(part.scored_tokens, token_name(), &characters_[part.index]);
  }
  AddMember("logprobs", std::move(logprobs), choice);
  AddEnd(part, choice);
  const bool is_first = part.is_first || !options().stream;
  if (options().returns_token_ids && is_first) {
    AddMember("prompt_token_ids", options().prompts[part.prompt].token_ids, choice);
  }
  if (options().has_prompt_logprobs) {
    AddMember("prompt_logprobs",
              PromptLogprobs(answer().ScoredPrompt(part.prompt), token_text()),
              choice);
  }
  return choice;
}

}  // namespace quire
