// Detokenizer turns the tokens of one sequence into text, token by token. It never returns part of
// a character: it holds back the bytes (at most three) of a character that is not complete yet.
//
// Thread safety: not thread-safe; one per sequence. Copyable, for forks.
// Invariants:    for every split of the tokens into a prompt and output,
//                  text(prompt) + Push(...) + ... + Push(...) + Flush() == Decode(prompt + output)
//                where text(prompt) is Decode(prompt) without an unfinished character at its end.
//                So output after a prompt keeps its leading space, and output after an empty prompt
//                has none. All returned text is valid UTF-8.
// Cost:          O(bytes of the token), however many tokens came before.
#ifndef QUIRE_SCHEDULER_TEXT_DETOKENIZER_H_
#define QUIRE_SCHEDULER_TEXT_DETOKENIZER_H_

#include <span>
#include <string>

#include "common/base/ids.h"
#include "scheduler/text/token_decoder.h"
#include "scheduler/text/tokenizer.h"

namespace quire {

class Detokenizer {
 public:
  // prompt: the tokens in front of the output, as the model sees them (with the
  // beginning-of-sequence token). Only the first and last few tokens of prompt are read. REQUIRES:
  // tokenizer outlives this object.
  Detokenizer(const Tokenizer* tokenizer,
              std::span<const TokenId> prompt,
              bool skip_special_tokens);

  // Takes the next token. Returns the characters that are now complete, often none if the token
  // ends inside a character. An id without a token adds nothing.
  std::string Push(TokenId id);

  // Returns U+FFFD in place of the bytes held back, if any. Call once, after the last token.
  std::string Flush();

 private:
  const TokenDecoder* decoder_;
  bool skip_special_tokens_;
  DecodeState state_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_DETOKENIZER_H_
