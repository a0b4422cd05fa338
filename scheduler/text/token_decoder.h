// TokenDecoder knows the bytes of every token and the rules that join them into text: the `decoder`
// part of tokenizer.json, compiled. Tokenizer::Decode and Detokenizer both use TokenDecoder, so a
// stream gives the same text as a decode of all tokens.
//
// Supported: ByteLevel; Metaspace; and the SentencePiece chain of Replace, ByteFallback, Fuse and
// Strip.
//
// A token has loose bytes if its bytes need not be whole characters. In byte-level vocabularies
// every token has loose bytes, and bytes that form no character become one U+FFFD for each maximal
// subpart, as in Rust's from_utf8_lossy. In byte-fallback vocabularies only the tokens "<0x00>" to
// "<0xFF>" have loose bytes. A complete character in a run of byte tokens becomes text at once;
// every other byte of the run becomes a separate U+FFFD. (If one byte is bad, Hugging Face turns
// the whole run of byte tokens into U+FFFD. A stream would have to hold back the run for that.)
//
// Thread safety: immutable after Parse; safe from any thread.
// Errors:        kInvalidArgument, reason TOKENIZER.
#ifndef QUIRE_SCHEDULER_TEXT_TOKEN_DECODER_H_
#define QUIRE_SCHEDULER_TEXT_TOKEN_DECODER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "scheduler/text/json_node.h"
#include "scheduler/text/vocabulary.h"

namespace quire {

// State of a decode between two tokens. A value; copy it freely.
struct DecodeState {
  std::string pending;         // bytes of an unfinished character, at most 3
  int64_t strip_left = 0;      // leading characters that may still be stripped
  bool at_first_token = true;  // true while no token has been decoded
};

class TokenDecoder {
 public:
  // node: the value of the key "decoder". added_texts: the added tokens' contents, normalized if
  // AddedToken::normalized is true.
  static absl::StatusOr<TokenDecoder> Parse(const JsonNode& node,
                                            const Vocabulary& vocabulary,
                                            const std::vector<std::string>& added_texts);

  DecodeState Start() const;
  // Appends the text that the token completes. An id without a token adds nothing.
  void Append(TokenId id, bool skip_special_tokens, DecodeState* state, std::string* text) const;
  // Ends the text: appends U+FFFD for unfinished bytes.
  void Finish(DecodeState* state, std::string* text) const;

  // Returns the state after prompt. Cost: reads only a few tokens at each end of the prompt, as
  // many as add text.
  DecodeState StateAfter(std::span<const TokenId> prompt, bool skip_special_tokens) const;

  // Returns the bytes that the token stands for inside a text; "" for an id without a token.
  std::string_view Bytes(TokenId id) const;

 private:
  // The kind of decoder, which decides how loose bytes are read.
  enum class Kind { kByteLevel, kSentencePiece, kMetaspace };

  struct Token {
    uint32_t begin = 0;  // offset in bytes_
    uint32_t size = 0;
    bool exists = false;
    bool special = false;
    bool is_loose = false;  // the bytes need not be whole characters
  };

  struct Replacement {
    std::string from;
    std::string to;
  };

  absl::Status ParseLeaves(const std::vector<JsonNode>& leaves);
  absl::Status ParseChain(const std::vector<JsonNode>& leaves);
  absl::Status ParseMetaspace(const JsonNode& node);
  absl::Status AddReplace(const JsonNode& node);
  absl::Status AddStrip(const JsonNode& node);
  absl::Status ReadTokens(const Vocabulary& vocabulary,
                          const std::vector<std::string>& added_texts);
  void AddToken(TokenId id, std::string_view text, bool special);
  std::string TextToBytes(std::string_view text, bool* is_loose) const;

  const Token* Find(TokenId id) const;
  void AppendLoose(std::string_view bytes, DecodeState* state, std::string* text) const;
  void FlushPending(DecodeState* state, std::string* text) const;
  void Emit(std::string_view characters, DecodeState* state, std::string* text) const;
  void EmitReplacement(size_t bytes, DecodeState* state, std::string* text) const;
  std::string LooseTail(std::span<const TokenId> prompt, bool skip_special_tokens) const;

  Kind kind_ = Kind::kByteLevel;
  std::vector<Replacement> replacements_;
  bool has_byte_fallback_ = false;
  std::string strip_character_;
  int64_t strip_left_ = 0;
  bool drops_first_spaces_ = false;  // Metaspace: the first token loses its spaces

  std::vector<Token> tokens_;  // indexed by token id
  std::string bytes_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_TOKEN_DECODER_H_
