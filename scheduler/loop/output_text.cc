#include "scheduler/loop/output_text.h"

#include <utility>

namespace quire {

OutputText::OutputText(const Tokenizer* tokenizer,
                       std::span<const TokenId> prompt,
                       bool skip_special_tokens,
                       std::optional<StopMatcher> stop_matcher)
    : detokenizer_(std::in_place, tokenizer, prompt, skip_special_tokens),
      stop_matcher_(std::move(stop_matcher)) {}

std::string OutputText::Push(TokenId token_id) {
  if (!detokenizer_.has_value()) {
    return "";
  }
  std::string text = detokenizer_->Push(token_id);
  return stop_matcher_.has_value() ? stop_matcher_->Push(text).text : text;
}

std::string OutputText::Flush() {
  if (!detokenizer_.has_value() || has_stopped()) {
    return "";
  }
  std::string text = detokenizer_->Flush();
  if (stop_matcher_.has_value()) {
    text = stop_matcher_->Push(text).text;
    text += stop_matcher_->Flush();
  }
  return text;
}

}  // namespace quire
