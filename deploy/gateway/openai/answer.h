// Answer follows the streams of all prompts of one HTTP request. It tells which text and tokens
// each message adds to which choice.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_ANSWER_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_ANSWER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/v1/generation.pb.h"

#include "deploy/gateway/openai/answer_options.h"

namespace quire {

struct ScoredToken {
  int32_t id = 0;
  std::optional<v1::TokenLogprobs> logprobs;  // nullopt: unknown, as for a prompt's first token
};

// The part of a choice that one message adds. After Append it holds the parts of several messages.
struct ChoicePart {
  int32_t index = 0;  // prompt * num_choices_per_prompt + sequence
  int32_t prompt = 0;
  bool is_first = false;  // no part of this choice came before
  std::string text;
  std::vector<int32_t> token_ids;  // without the prompt's tokens
  // The tokens of `text`, including the tokens of an echoed prompt. Empty unless the client asked
  // for log-probabilities.
  std::vector<ScoredToken> scored_tokens;
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;  // unspecified: not ended
  std::string matched_stop;
  std::optional<int32_t> stop_token;  // the token of stop_token_ids that ended the choice

  bool has_ended() const { return finish_reason != v1::FINISH_REASON_UNSPECIFIED; }
  void Append(ChoicePart part);
};

class Answer {
 public:
  // `echoes_tokens`: true if the tokens of an echoed prompt precede a choice's other scored tokens.
  // REQUIRES: `options` outlives this object.
  Answer(const AnswerOptions& options, bool echoes_tokens);

  // Takes the next message of a prompt's stream. Returns nullopt if the message adds nothing to a
  // choice, or is about a choice that the request does not have. REQUIRES: 0 <= prompt < number of
  // prompts.
  std::optional<ChoicePart> Take(int32_t prompt, const v1::GenerateResponse& message);

  // True if all choices of all prompts have ended.
  bool has_ended() const { return num_ended_ == static_cast<int32_t>(choices_.size()); }
  bool has_started(int32_t prompt) const { return prompts_[prompt].has_started; }
  int32_t num_prompt_tokens(int32_t prompt) const { return prompts_[prompt].num_tokens; }
  int32_t num_output_tokens(int32_t choice) const { return choices_[choice].num_tokens; }
  int64_t num_prompt_tokens() const;         // of all prompts
  int64_t num_cached_prompt_tokens() const;  // prompt tokens whose KV blocks were cached
  int64_t num_output_tokens() const;         // of all choices
  // Fingerprint of the server that answered last; empty before the first message.
  const std::string& determinism_fingerprint() const { return fingerprint_; }
  // Returns the prompt's tokens. A token has no log-probabilities until their message arrives.
  std::vector<ScoredToken> ScoredPrompt(int32_t prompt) const;

 private:
  struct PromptState {
    bool has_started = false;
    int32_t num_tokens = 0;
    int32_t num_cached_tokens = 0;            // known when a choice has ended
    std::vector<v1::TokenLogprobs> logprobs;  // from the second token on
  };
  struct ChoiceState {
    bool has_begun = false;
    bool has_ended = false;
    int32_t num_tokens = 0;
    int32_t last_token = -1;
  };

  void BeginChoice(ChoicePart& part);
  void AddChunk(const v1::Chunk& chunk, ChoicePart& part);
  void AddEnd(const v1::Finished& finished, ChoicePart& part);

  const AnswerOptions& options_;
  const bool echoes_tokens_;
  std::vector<PromptState> prompts_;
  std::vector<ChoiceState> choices_;
  int32_t num_ended_ = 0;
  std::string fingerprint_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_ANSWER_H_
