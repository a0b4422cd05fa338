// TokenDecoder knows the bytes of every token and the rules that join them into text: the `decoder` part of
// tokenizer.json, compiled. Tokenizer::Decode and Detokenizer both run on it, which is why a stream
// and a whole decode agree.
//
// Two kinds of bytes exist. Byte-level vocabularies: any token may end inside a character, and bytes
// that form none become one U+FFFD for each maximal part, as Rust's from_utf8_lossy does. Byte
// fallback vocabularies: only tokens "<0x00>" to "<0xFF>" carry loose bytes; a complete character
// among them is text, every other byte of them becomes a U+FFFD of its own.
//
// Thread safety: immutable after Parse; safe from any thread.
#ifndef QUIRE_SCHEDULER_TEXT_TOKEN_DECODER_H_
#define QUIRE_SCHEDULER_TEXT_TOKEN_DECODER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "common/json/json.h"
#include "scheduler/text/vocabulary.h"

namespace quire {

// Where a decode stands between two tokens. A value; copy it freely.
struct DecodeState {
  std::string pending;       // bytes of an unfinished character, at most 3
  int32_t strip_left = 0;    // leading characters that may still be stripped
  bool at_first_token = true;  // no token has been kept so far
};

class TokenDecoder {
 public:
  // decoder: the value of the key "decoder". vocabulary is read here and must outlive the decoder.
  // Errors: kInvalidArgument, reason TOKENIZER.
  static absl::StatusOr<TokenDecoder> Parse(const Json& decoder, const Vocabulary& vocabulary);

  DecodeState Start() const;
  // Appends the text that token id completes.
  void Append(TokenId id, bool skip_special_tokens, DecodeState* state, std::string* text) const;
  // Appends what is left: U+FFFD for unfinished bytes.
  void Finish(DecodeState* state, std::string* text) const;

  // The state after prompt, without its text. Cost: the first and last few tokens.
  DecodeState StateAfter(std::span<const TokenId> prompt, bool skip_special_tokens) const;

  // The bytes the token stands for inside a text. "" for an id without a token.
  std::string_view Bytes(TokenId id) const;

 private:
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_TOKEN_DECODER_H_
