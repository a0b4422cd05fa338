// Bodies of the routes that generate nothing: /v1/models, /tokenize, /detokenize, /apply-template,
// /version.
//
// Thread safety: free functions, safe from any thread.
// Errors:        as in completion_request.h.
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_SERVICE_BODIES_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_SERVICE_BODIES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/v1/generation.pb.h"

#include "deploy/gateway/openai/chat_prompt.h"

namespace quire {

// GET /v1/models/{id}. `created`: seconds since 1970.
std::string ModelBody(const v1::GetServerInfoResponse& info,
                      const std::string& id,
                      int64_t created);

// GET /v1/models: an entry for each name of the served model.
std::string ModelsBody(const v1::GetServerInfoResponse& info, int64_t created);

// The body of POST /tokenize or of POST /apply-template, which is always a chat. By default special
// tokens are added to a text, but not to a chat, because the chat's template writes them.
struct TokenizeBody {
  std::string model;               // empty: any; the caller compares it with the served names
  v1::TokenizeRequest request;     // without `text` for a chat
  std::optional<ChatPrompt> chat;  // nullopt: the prompt is request.text
  bool returns_token_texts = false;
};
absl::StatusOr<TokenizeBody> ParseTokenizeBody(std::string_view body,
                                               ContentFormat format = ContentFormat::kString);
absl::StatusOr<TokenizeBody> ParseApplyTemplateBody(std::string_view body,
                                                    ContentFormat format = ContentFormat::kString);

// `token_texts`: the text of each token, or nullopt if the client did not ask for texts.
std::string TokenizeAnswer(const std::vector<int32_t>& tokens,
                           int32_t max_model_len_tokens,
                           const std::optional<std::vector<std::string>>& token_texts);
std::string ApplyTemplateAnswer(std::string_view prompt);

// POST /detokenize.
struct DetokenizeBody {
  std::string model;
  v1::DetokenizeRequest request;
};
absl::StatusOr<DetokenizeBody> ParseDetokenizeBody(std::string_view body);
std::string DetokenizeAnswer(std::string_view text);

// GET /version.
std::string VersionBody(std::string_view version);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_SERVICE_BODIES_H_
