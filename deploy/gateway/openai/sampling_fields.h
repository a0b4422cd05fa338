// Reads the fields that /v1/completions and /v1/chat/completions share, with the meaning that vLLM
// 0.11 gives them. README.md lists the fields that are refused and those that are ignored.
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_SAMPLING_FIELDS_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_SAMPLING_FIELDS_H_

#include <string_view>

#include "proto/v1/generation.pb.h"

#include "deploy/gateway/openai/answer_options.h"
#include "deploy/gateway/openai/json_fields.h"

namespace quire {

// Reads the shared fields, except those about the prompt, max_tokens and log-probabilities. Sets
// `request` and `options`. Both get the same id: id_prefix, followed by the body's request_id, or
// by default_request_id if the body has none. Keeps errors in `fields`. Checks only the ranges that
// bound the memory of a request; the scheduler checks all others.
void ReadSharedFields(std::string_view id_prefix,
                      std::string_view default_request_id,
                      JsonFields& fields,
                      v1::GenerateRequest& request,
                      AnswerOptions& options);

// Reads `model`. Returns an empty name if the field is absent.
std::string ReadModel(JsonFields& fields);

// Reads prompt_logprobs, and sets it in `request` and `options`. If the answer is streamed, ignores
// the value 0, and fails for other values.
void ReadPromptLogprobs(JsonFields& fields, v1::GenerateRequest& request, AnswerOptions& options);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_SAMPLING_FIELDS_H_
