// Reads the special tokens of a GGUF file's vocabulary (bos, eos, ...), the tokens that end an
// answer, and the type of each token.
//
// Thread safety: free functions, safe from any thread.
// Errors:        those of GgufMetadata; an id outside the vocabulary.
// Cost:          linear in the vocabulary.
#ifndef QUIRE_COMMON_MODEL_GGUF_SPECIAL_TOKENS_H_
#define QUIRE_COMMON_MODEL_GGUF_SPECIAL_TOKENS_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/ids.h"
#include "common/model/gguf_metadata.h"

namespace quire {

inline constexpr std::string_view kGgufTokensKey = "tokenizer.ggml.tokens";
inline constexpr std::string_view kGgufTokenTypesKey = "tokenizer.ggml.token_type";
inline constexpr std::string_view kGgufTokenizerModelKey = "tokenizer.ggml.model";

// Elements of tokenizer.ggml.token_type. The values are the numbers that files hold.
enum class GgufTokenType : uint8_t {
  kUndefined = 0,  // read as kNormal
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct GgufSpecialTokens {
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> unk;
  std::optional<TokenId> sep;
  std::optional<TokenId> pad;
  std::optional<TokenId> cls;
  std::optional<TokenId> mask;
  // Tokens that end an answer, without duplicates: eos, the end of a turn (eot), the end of a
  // message (eom), and tokens with a known name, such as "<|im_end|>". Known names are needed,
  // because many files give an id for only one of several ends.
  std::vector<TokenId> ends;
};

absl::StatusOr<GgufSpecialTokens> ReadGgufSpecialTokens(const GgufMetadata& metadata);

// Returns the type of each token; kNormal for all if the file gives no types.
absl::StatusOr<std::vector<GgufTokenType>> ReadGgufTokenTypes(const GgufMetadata& metadata,
                                                              size_t num_tokens);

}  // namespace quire

#endif  // QUIRE_COMMON_MODEL_GGUF_SPECIAL_TOKENS_H_
