// ParseCompletionRequest turns the body of POST /v1/completions into requests of the scheduler.
//
// Thread safety: a free function, safe from any thread.
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_COMPLETION_REQUEST_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_COMPLETION_REQUEST_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/v1/generation.pb.h"

#include "deploy/gateway/openai/answer_options.h"

namespace quire {

struct CompletionRequest {
  std::vector<v1::GenerateRequest> requests;  // one for each prompt, in the order of the prompts
  AnswerOptions options;
};

// `request_id`: the id if the body names none; at most 100 bytes of [A-Za-z0-9._-]. Errors:
// kInvalidArgument, with the reason JSON; with a reason of json_fields.h; or with the scheduler's
// reason (scheduler/rpc/README.md) for a limit that the scheduler checks too.
absl::StatusOr<CompletionRequest> ParseCompletionRequest(std::string_view body,
                                                         std::string_view request_id);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_COMPLETION_REQUEST_H_
