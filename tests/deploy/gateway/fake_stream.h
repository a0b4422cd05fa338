// The messages of a scheduler that answers every request alike: two tokens for each sequence. Token
// 20 has the text " t20".
//
// Thread safety: free functions, safe from any thread.
#ifndef QUIRE_TESTS_DEPLOY_GATEWAY_FAKE_STREAM_H_
#define QUIRE_TESTS_DEPLOY_GATEWAY_FAKE_STREAM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "proto/v1/generation.pb.h"

namespace quire {

inline std::string FakeTokenText(int32_t id) { return absl::StrCat(" t", id); }

// Log-probability -id/16 of the token; the likeliest tokens are id - 1, id, id + 1, ...
inline v1::TokenLogprobs FakeLogprobs(int32_t id, int32_t num_top) {
  v1::TokenLogprobs logprobs;
  logprobs.set_logprob(static_cast<float>(-id) / 16);
  for (int32_t i = 0; i < num_top; ++i) {
    v1::TokenLogprob& top = *logprobs.add_top();
    top.set_token_id(id - 1 + i);
    top.set_logprob(static_cast<float>(1 - id - i) / 16);
  }
  return logprobs;
}

inline v1::GenerateResponse FakeStart(const v1::GenerateRequest& request, int32_t num_tokens) {
  v1::GenerateResponse message;
  message.mutable_started()->set_request_id(request.request_id());
  message.mutable_started()->set_num_prompt_tokens(num_tokens);
  message.mutable_started()->set_determinism_fingerprint("cpu/1");
  if (request.response().has_prompt_logprobs()) {
    message.mutable_prompt_logprobs()->set_first_position(1);
    for (int32_t id = 1; id < num_tokens; ++id) {
      *message.mutable_prompt_logprobs()->add_logprobs() =
          FakeLogprobs(id, request.response().prompt_logprobs());
    }
  }
  return message;
}

// Prompts are the tokens 0, 1, 2. Sequence s has the tokens 20 + 10 * s and 21 + 10 * s.
inline std::vector<v1::GenerateResponse> FakeStream(const v1::GenerateRequest& request) {
  std::vector<v1::GenerateResponse> messages = {FakeStart(request, 3)};
  for (int32_t position = 0; position < 2; ++position) {
    for (int32_t sequence = 0; sequence < request.n(); ++sequence) {
      const int32_t id = 20 + 10 * sequence + position;
      v1::GenerateResponse message;
      v1::Chunk& chunk = *message.mutable_chunk();
      chunk.set_index(sequence);
      chunk.set_first_position(position);
      chunk.add_token_ids(id);
      chunk.set_text(FakeTokenText(id));
      if (request.response().has_logprobs()) {
        *chunk.add_logprobs() = FakeLogprobs(id, request.response().logprobs());
      }
      if (position == 1) {
        message.mutable_finished()->set_index(sequence);
        message.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
        message.mutable_finished()->set_num_cached_prompt_tokens(1);
      }
      messages.push_back(message);
    }
  }
  return messages;
}

}  // namespace quire

#endif  // QUIRE_TESTS_DEPLOY_GATEWAY_FAKE_STREAM_H_
