// Vocabulary maps token texts to ids and back, for the model's own tokens and the added tokens.
//
// Thread safety: immutable after Create; safe from any thread. Not copyable, because other
//                components keep views into the object.
// Invariants:    no two tokens share an id or a text; size() is at most twice the number of tokens,
//                so that a file cannot make the process allocate much more than the file's size.
// Errors:        kInvalidArgument, reason TOKENIZER: the file is wrong, or a token is longer than
//                kMaxTokenBytes.
// Cost:          look-ups O(1); memory about 40 bytes for each token, plus its text.
#ifndef QUIRE_SCHEDULER_TEXT_VOCABULARY_H_
#define QUIRE_SCHEDULER_TEXT_VOCABULARY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "scheduler/text/json_node.h"

namespace quire {

// Upper bound on the bytes of a token's text, so that a few tokens never make a long text. Known
// vocabularies have tokens of up to a few hundred bytes.
inline constexpr size_t kMaxTokenBytes = 4096;
// Upper bound on the bytes of an added token's content, because added tokens are searched at every
// byte of a text. Known models need at most 43.
inline constexpr size_t kMaxAddedTokenBytes = 256;

// An entry of added_tokens in tokenizer.json. The tokenizer finds added tokens by their content,
// before it cuts the text into pieces. BPE merges do not make them.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  // matches only as a whole word
  bool lstrip = false;       // includes the white space on its left
  bool rstrip = false;       // includes the white space on its right
  bool normalized = false;   // matched in normalized text, not in the original
  bool special = false;      // left out of decoded text if the caller asks for that
};

class Vocabulary {
 public:
  // root: the whole tokenizer.json. Reads model.vocab and added_tokens.
  static absl::StatusOr<std::unique_ptr<const Vocabulary>> Create(const JsonNode& root);

  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  // One more than the largest id.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  bool Contains(TokenId id) const { return id >= 0 && id < size() && At(id).exists; }
  bool IsSpecial(TokenId id) const { return Contains(id) && At(id).special; }
  bool IsInModel(TokenId id) const { return Contains(id) && At(id).in_model; }
  std::string_view Text(TokenId id) const {
    return Contains(id) ? At(id).text : std::string_view();
  }

  std::optional<TokenId> Find(std::string_view text) const;
  // As Find, but returns nullopt for an added token that is not in model.vocab.
  std::optional<TokenId> FindInModel(std::string_view text) const;

  const std::vector<AddedToken>& added_tokens() const { return added_tokens_; }
  // Sum of the lengths of all added tokens' contents.
  size_t added_bytes() const { return added_bytes_; }

 private:
  struct Token {
    std::string_view text;
    bool exists = false;
    bool in_model = false;
    bool special = false;
  };

  Vocabulary() = default;
  const Token& At(TokenId id) const { return tokens_[static_cast<size_t>(id)]; }
  absl::Status ReadModel(const JsonNode& vocab);
  absl::Status ReadAdded(const std::vector<JsonNode>& nodes);
  absl::Status CheckSpan(const JsonNode& root) const;
  absl::Status Index(const JsonNode& root);

  std::vector<std::pair<std::string, TokenId>> model_tokens_;
  std::vector<AddedToken> added_tokens_;
  size_t added_bytes_ = 0;
  std::vector<Token> tokens_;  // indexed by token id
  absl::flat_hash_map<std::string_view, TokenId> ids_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_VOCABULARY_H_
