// CompletionResponse answers POST /v1/completions with a `text_completion`, or with events whose
// `object` is `text_completion`.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_COMPLETION_RESPONSE_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_COMPLETION_RESPONSE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "deploy/gateway/openai/response.h"

namespace quire {

class CompletionResponse : public Response {
 public:
  // `options`: those of ParseCompletionRequest, completed as answer_options.h says.
  CompletionResponse(AnswerOptions options, int64_t created, TokenText token_text);

 private:
  std::vector<OrderedJson> FirstEvents(int32_t prompt) override;
  OrderedJson ChoiceJson(const ChoicePart& part) override;
  std::string_view object_name() const override { return "text_completion"; }

  std::vector<CharacterCounter> characters_;  // count the characters of each choice's tokens
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_COMPLETION_RESPONSE_H_
