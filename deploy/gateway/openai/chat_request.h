// ParseChatRequest turns the body of POST /v1/chat/completions into a request of the scheduler. The
// request has no prompt yet: the caller renders the chat template and adds the tokens.
//
// Thread safety: a free function, safe from any thread.
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_CHAT_REQUEST_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_CHAT_REQUEST_H_

#include <string_view>

#include "absl/status/statusor.h"

#include "proto/v1/generation.pb.h"

#include "deploy/gateway/openai/answer_options.h"
#include "deploy/gateway/openai/chat_prompt.h"

namespace quire {

struct ChatRequest {
  ChatPrompt prompt;
  v1::GenerateRequest request;  // without a prompt: the caller sets `token_ids`
  AnswerOptions options;
};

// `request_id` and errors: as in completion_request.h. `format`: the form of contents that the
// template reads.
absl::StatusOr<ChatRequest> ParseChatRequest(std::string_view body,
                                             std::string_view request_id,
                                             ContentFormat format = ContentFormat::kString);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_CHAT_REQUEST_H_
