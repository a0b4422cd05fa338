// ChatResponse answers POST /v1/chat/completions with a `chat.completion`, or with events whose
// `object` is `chat.completion.chunk`. The first event of each choice has the role and no text.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_CHAT_RESPONSE_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_CHAT_RESPONSE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "deploy/gateway/openai/response.h"

namespace quire {

class ChatResponse : public Response {
 public:
  // `options`: those of ParseChatRequest, completed as answer_options.h says.
  ChatResponse(AnswerOptions options, int64_t created, TokenText token_text);

 private:
  std::vector<OrderedJson> FirstEvents(int32_t prompt) override;
  OrderedJson ChoiceJson(const ChoicePart& part) override;
  std::string_view object_name() const override;
  void AddWholeFields(OrderedJson& body) override;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_CHAT_RESPONSE_H_
