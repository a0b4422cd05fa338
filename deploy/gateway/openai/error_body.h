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
  std::optional<int> retry_after_s;  // the header Retry-After
};

// The API whose field names an error uses.
enum class OpenAiApi { kCompletions, kChat };

// Converts a failure of the gateway's own parsers or of the scheduler (FromGrpcStatus). The code is
// the reason (scheduler/rpc/README.md), the param the field's name in the API. The message of a
// status without a reason is replaced, since gRPC's own messages contain addresses; the code of a
// kUnavailable one is NO_SCHEDULER.
// `max_tokens_name`: AnswerOptions::max_tokens_name.
// `retry_delay`: RetryDelayOf. A 503 always has a Retry-After, a 429 if the scheduler gave a delay
// or the reason has one. REQUIRES: !status.ok().
HttpError ToHttpError(const absl::Status& status,
                      std::optional<absl::Duration> retry_delay,
                      OpenAiApi api,
                      std::string_view max_tokens_name = "max_tokens");

// Returns the body of an error that the HTTP server finds itself, such as 404 or 413.
std::string HttpErrorBody(int http_status, std::string_view message);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_ERROR_BODY_H_
