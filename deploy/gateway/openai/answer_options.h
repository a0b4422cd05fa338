// AnswerOptions say what form the client wants its answer in. The scheduler does not need them.
//
// Thread safety: plain data.
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_ANSWER_OPTIONS_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_ANSWER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// The text and tokens of a prompt that the answer repeats.
struct PromptEcho {
  std::string text;
  std::vector<int32_t> token_ids;
};

struct AnswerOptions {
  std::string id;     // "cmpl-" or "chatcmpl-" and the request's id
  std::string model;  // as the client named it; empty: the caller sets the served name
  // The parser's caller adds missing texts if `echo`, and missing token ids if
  // needs_prompt_token_ids(). In a chat with `echo`, the text is that of the last message, because
  // the answer continues this message.
  std::vector<PromptEcho> prompts;
  int32_t num_choices_per_prompt = 1;
  std::string role = "assistant";  // of the answer in a chat
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  // True: each choice begins with the text of its prompt. With log-probabilities, a completion also
  // has those of the prompt's tokens.
  bool echo = false;
  // True: the client wants no new token. The scheduler still generates one, and the answer omits
  // it.
  bool omits_output = false;
  std::optional<int32_t> num_top_logprobs;  // nullopt: no log-probabilities
  bool has_prompt_logprobs = false;         // true: the answer has the field prompt_logprobs
  bool returns_token_ids = false;
  bool names_tokens_by_id = false;      // true: log-probabilities name a token "token_id:5"
  std::vector<int32_t> stop_token_ids;  // if one ends a choice, stop_reason names it
  // The name that the client used for max_tokens, for errors. Points to a string literal.
  std::string_view max_tokens_name = "max_tokens";

  bool needs_prompt_token_ids() const {
    return returns_token_ids || has_prompt_logprobs || (echo && num_top_logprobs.has_value());
  }
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_ANSWER_OPTIONS_H_
