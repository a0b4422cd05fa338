#include "deploy/gateway/openai/chat_response.h"

#include <utility>

#include "deploy/gateway/openai/json_fields.h"

namespace quire {

ChatResponse::ChatResponse(AnswerOptions options, int64_t created, TokenText token_text)
    : Response(std::move(options), /*echoes_tokens=*/false, created, std::move(token_text)) {}

std::string_view ChatResponse::object_name() const {
  return options().stream ? "chat.completion.chunk" : "chat.completion";
}

std::vector<OrderedJson> ChatResponse::FirstEvents(int32_t prompt) {
  std::vector<OrderedJson> events;
  for (int32_t i = 0; i < options().num_choices_per_prompt; ++i) {
    OrderedJson delta = OrderedJson::object({{"role", options().role}, {"content", ""}});
    OrderedJson choice = OrderedJson::object({{"index", i},
                                              {"delta", std::move(delta)},
                                              {"logprobs", nullptr},
                                              {"finish_reason", nullptr}});
    OrderedJson event = Event(OrderedJson::array({std::move(choice)}), prompt, 0);
    if (options().returns_token_ids) {
      AddMember("prompt_token_ids", options().prompts[prompt].token_ids, event);
    }
    events.push_back(std::move(event));
  }
  return events;
}

OrderedJson ChatResponse::ChoiceJson(const ChoicePart& part) {
  OrderedJson choice = OrderedJson::object({{"index", part.index}});
  if (options().stream) {
    AddMember("delta", OrderedJson::object({{"content", part.text}}), choice);
  } else {
    AddMember(
        "message", OrderedJson::object({{"role", options().role}, {"content", part.text}}), choice);
  }
  OrderedJson logprobs;
  if (options().num_top_logprobs.has_value()) {
    logprobs = ChatLogprobs(part.scored_tokens, token_name());
  }
  AddMember("logprobs", std::move(logprobs), choice);
  AddEnd(part, choice);
  return choice;
}

void ChatResponse::AddWholeFields(OrderedJson& body) {
  if (options().has_prompt_logprobs) {
    AddMember("prompt_logprobs", PromptLogprobs(answer().ScoredPrompt(0), token_text()), body);
  }
  if (options().returns_token_ids) {
    AddMember("prompt_token_ids", options().prompts[0].token_ids, body);
  }
}

}  // namespace quire
