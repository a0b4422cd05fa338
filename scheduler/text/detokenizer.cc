#include "scheduler/text/detokenizer.h"

namespace quire {

Detokenizer::Detokenizer(const Tokenizer* tokenizer,
                         std::span<const TokenId> prompt,
                         bool skip_special_tokens)
    : decoder_(&tokenizer->decoder()),
      skip_special_tokens_(skip_special_tokens),
      state_(decoder_->StateAfter(prompt, skip_special_tokens)) {}

std::string Detokenizer::Push(TokenId id) {
  std::string text;
  decoder_->Append(id, skip_special_tokens_, &state_, &text);
  return text;
}

std::string Detokenizer::Flush() {
  std::string text;
  decoder_->Finish(&state_, &text);
  return text;
}

}  // namespace quire
