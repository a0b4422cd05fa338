// Tokenizer turns text into token ids and back, exactly as Hugging Face `tokenizers` does for the
// same tokenizer.json: byte-level BPE (GPT-2, OPT, Llama 3, Qwen2, ...) and SentencePiece-style BPE
// with byte fallback (Llama 2, Mistral, ...). A file with an unsupported setting is refused at
// load; no setting is ignored silently. README.md in this folder lists the supported settings.
//
// Thread safety: immutable after Load; every method may be called from any thread at once.
// Errors:        Load: the errors of ReadFile; the errors of ParseJson; kInvalidArgument TOKENIZER,
//                with the violated rule; the errors of GgufFile::Open and TokenizerJsonFromGguf.
//                Encode: kInvalidArgument INVALID_UTF8; kInvalidArgument TOKENIZE_BUDGET if the
//                text takes too much work or gives too many tokens (never with the tokenizers of
//                the models named above); kResourceExhausted TOKENIZE_MEMORY; the error that the
//                budget's StopCheck returned.
// Cost:          Load takes about 0.5 s for 128k tokens. Encode is O(n log n) in bytes for every
//                text; Decode is O(bytes). No recursion on the depth or size of any input.
// Source:        Sennrich et al. 2016 (BPE); Kudo and Richardson 2018 (SentencePiece).
#ifndef QUIRE_SCHEDULER_TEXT_TOKENIZER_H_
#define QUIRE_SCHEDULER_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/byte_range.h"
#include "common/base/ids.h"
#include "common/json/json.h"
#include "scheduler/text/text_budget.h"

namespace quire {

class TokenDecoder;

class Tokenizer {
 public:
  // Reads a tokenizer.json, or the tokenizer in a GGUF file (model_path.h). Every error message of
  // Load names the file.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  // Reads the tokenizer of a model directory or a GGUF file. Returns null for a directory without
  // tokenizer.json. Errors: those of Load and ResolveModelFile.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> LoadOfModel(const std::string& model_path);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(const Json& json);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // add_special_tokens: apply the post-processor of the file (usually: put the
  //   beginning-of-sequence token in front).
  // parse_special: true reads the text of a special token ("</s>") as that token, anywhere in the
  //   text, as Hugging Face does by default; false reads it as plain text. Use false for text that
  //   comes from people: with true, a prompt could forge the turns of a chat. Added tokens that are
  //   not special are always recognized.
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view utf8_text,
                                              bool add_special_tokens,
                                              bool parse_special) const;
  // As above, with a budget that the caller made for this text. Fails if the budget is used up.
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view utf8_text,
                                              bool add_special_tokens,
                                              bool parse_special,
                                              TextBudget* budget) const;
  // As above, but a special token's name that overlaps one of plain_ranges is read as plain text. A
  // word may cross the border of a range. REQUIRES: plain_ranges are in order and do not overlap.
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view utf8_text,
                                              bool add_special_tokens,
                                              bool parse_special,
                                              std::span<const ByteRange> plain_ranges,
                                              TextBudget* budget) const;

  // Returns the text of a whole token sequence: always valid UTF-8, with U+FFFD for bytes that form
  // no character. Ids without a token add nothing. For a stream use Detokenizer, which returns the
  // same text in pieces.
  std::string Decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

  // Returns FoldHash of tokenizer.json's bytes, or DigestOfGgufTokenizer for a GGUF file. Equal
  // tokenizer files have equal digests. Returns 0 if the tokenizer was not loaded from a file.
  uint64_t file_digest() const { return file_digest_; }

  // One more than the largest id. A smaller id may have no token: see IsValidId.
  int32_t vocab_size() const;
  // Returns true if the id names a token. Returns false for negative ids, for ids from vocab_size()
  // on (a model may have such ids as padding), and for smaller ids that the file gives to no token.
  bool IsValidId(TokenId id) const;
  // Returns true if the id names a special added token, which skip_special_tokens leaves out.
  bool IsSpecial(TokenId id) const;

  // Returns the token as the file writes it ("Ġthe", "▁the", "<0x0A>", "</s>"). Returns "" if
  // !IsValidId(id).
  std::string_view TokenText(TokenId id) const;
  // Returns the bytes for which the token stands inside a text (" the", " the", "\n", "</s>"), for
  // per-token output such as logprobs. They may be part of a character. Returns "" if
  // !IsValidId(id).
  std::string_view TokenBytes(TokenId id) const;
  // Returns the id of the token that the file writes as token_text, or nullopt.
  std::optional<TokenId> FindToken(std::string_view token_text) const;

  // For Detokenizer.
  const TokenDecoder& decoder() const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGguf(const std::string& path);

  std::unique_ptr<const Parts> parts_;
  uint64_t file_digest_ = 0;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_TOKENIZER_H_
