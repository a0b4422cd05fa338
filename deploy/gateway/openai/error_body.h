// Errors in OpenAI's form, {"error": {message, type, param, code}}, with their HTTP status.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_ERROR_BODY_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_ERROR_BODY_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace quire {

struct HttpError {
  int status = 500;
  std::string body;
  std::optional<int> retry_after_s;  // the header Retry-After; nullopt: none
};

// The API of a request. Errors use the field names of this API.
enum class OpenAiApi { kCompletions, kChat };

// Converts a failure of the gateway's own parsers or of the scheduler (FromGrpcStatus). In the
// body, `code` is the reason (scheduler/rpc/README.md), or context_length_exceeded for a prompt
// that is too long, and `param` is the field's name in the API. A status without a reason comes
// from gRPC, whose messages contain addresses. So its message is replaced, and `code` is
// NO_SCHEDULER if the status is kUnavailable, and null for all other statuses without a reason.
// `max_tokens_name`: AnswerOptions::max_tokens_name.
// `retry_delay`: RetryDelayOf. A 503 always has a Retry-After. A 429 has one if the scheduler gave
// a delay, or if the reason is ANSWER_MEMORY. REQUIRES: !status.ok().
HttpError ToHttpError(const absl::Status& status,
                      std::optional<absl::Duration> retry_delay,
                      OpenAiApi api,
                      std::string_view max_tokens_name = "max_tokens");

// Returns the body of an error that the HTTP server itself detects, such as 404 or 413.
std::string HttpErrorBody(int http_status, std::string_view message);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_ERROR_BODY_H_
