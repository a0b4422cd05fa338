#include "scheduler/loop/output_text.h"

#include <utility>

namespace quire {

OutputText::OutputText(const Tokenizer* tokenizer,
                       std::span<const TokenId> prompt,
                       bool skip_special_tokens,
                       std::optional<StopMatcher> stop_matcher,
                       int32_t min_tokens)
    : detokenizer_(std::in_place, tokenizer, prompt, skip_special_tokens),
      stop_matcher_(std::move(stop_matcher)),
      min_tokens_(min_tokens) {}

std::string OutputText::Push(TokenId token_id) {
  if (!detokenizer_.has_value()) {
    return "";
  }
  ++num_tokens_;
  return Match(detokenizer_->Push(token_id));
}

std::string OutputText::Flush() {
  if (!detokenizer_.has_value() || has_stopped()) {
    return "";
  }
  std::string text = Match(detokenizer_->Flush());
  return stop_matcher_.has_value() ? text + stop_matcher_->Flush() : text;
}

std::string OutputText::Match(std::string text) {
  return stop_matcher_.has_value() ? stop_matcher_->Push(text, num_tokens_ > min_tokens_).text
                                   : std::move(text);
}

}  // namespace quire
