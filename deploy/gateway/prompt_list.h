// TokenizePrompts tokenizes and checks all prompts of one completion request before the scheduler
// gets any. Otherwise an impossible prompt would race with the first tokens of the other prompts,
// and chance would decide whether the request is refused or its stream ends with an error.
//
// A request with one prompt needs no such check, because its refusal precedes its first token. Only
// the scheduler knows the size of its KV cache, so it may still refuse a prompt as
// EXCEEDS_CAPACITY.
//
// Thread safety: free function, safe from any thread.
#ifndef QUIRE_DEPLOY_GATEWAY_PROMPT_LIST_H_
#define QUIRE_DEPLOY_GATEWAY_PROMPT_LIST_H_

#include "absl/status/status.h"

#include "deploy/gateway/model_gate.h"
#include "deploy/gateway/openai/completion_request.h"

namespace quire {

// Replaces the texts of several prompts by their tokens. REQUIRES: CompleteEchoes ran before
// (generation_routes.cc). Errors: those of ChatModel::Encode; kInvalidArgument with a reason of the
// scheduler: MAX_TOKENS_RANGE; or, with the prompt's index in the message, EMPTY_PROMPT,
// TOKEN_ID_RANGE, PROMPT_TOO_LONG, CONTEXT_EXCEEDED or MIN_TOKENS_RANGE.
absl::Status TokenizePrompts(const ModelGate::Served& served, CompletionRequest& request);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_PROMPT_LIST_H_
