#include "common/model/gguf_special_tokens.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

// Names of tokens that end an answer in every vocabulary, as in llama.cpp. They are found by name,
// because files often give these tokens the type of plain text.
constexpr std::string_view kEndNames[] = {"<|eot_id|>",
                                          "<|eom_id|>",
                                          "<|im_end|>",
                                          "<|end|>",
                                          "<|endoftext|>",
                                          "<|end_of_text|>",
                                          "<end_of_turn>",
                                          "<end_of_utterance>",
                                          "<EOT>"};

// Reads the id of a special token. Returns nullopt if the key is missing.
absl::StatusOr<std::optional<TokenId>> ReadId(const GgufMetadata& metadata,
                                              std::string_view name,
                                              size_t num_tokens) {
  const std::string key = absl::StrCat("tokenizer.ggml.", ToAbsl(name), "_token_id");
  const absl::StatusOr<int64_t> id =
      metadata.GetInteger(key, 0, static_cast<int64_t>(num_tokens) - 1);
  if (absl::IsNotFound(id.status())) {
    return std::nullopt;
  }
  QUIRE_RETURN_IF_ERROR(id.status());
  return static_cast<TokenId>(*id);
}

}  // namespace

absl::StatusOr<std::vector<GgufTokenType>> ReadGgufTokenTypes(const GgufMetadata& metadata,
                                                              size_t num_tokens) {
  if (!metadata.Has(kGgufTokenTypesKey)) {
    return std::vector<GgufTokenType>(num_tokens, GgufTokenType::kNormal);
  }
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<int64_t> numbers,
      metadata.GetIntegers(kGgufTokenTypesKey, 0, static_cast<int64_t>(GgufTokenType::kByte)));
  if (numbers.size() != num_tokens) {
    return metadata.KeyError(
        kGgufTokenTypesKey,
        absl::StrCat(
            "must have an element for each token (got ", numbers.size(), " for ", num_tokens, ")"));
  }
  std::vector<GgufTokenType> types;
  types.reserve(num_tokens);
  for (const int64_t number : numbers) {
    types.push_back(static_cast<GgufTokenType>(number));
  }
  return types;
}

absl::StatusOr<GgufSpecialTokens> ReadGgufSpecialTokens(const GgufMetadata& metadata) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::string_view> tokens,
                         metadata.GetStrings(kGgufTokensKey));
  // The types are only checked here, so that wrong types are an error before the weights load.
  QUIRE_RETURN_IF_ERROR(ReadGgufTokenTypes(metadata, tokens.size()).status());
  GgufSpecialTokens special;
  const absl::StatusOr<std::string_view> model = metadata.GetString(kGgufTokenizerModelKey);
  if (model.ok() && *model == "llama" && tokens.size() > 2) {
    // Defaults of SentencePiece.
    special.unk = 0;
    special.bos = 1;
    special.eos = 2;
  }
  std::optional<TokenId> eot;
  std::optional<TokenId> eom;
  struct Field {
    std::string_view name;
    std::optional<TokenId>* id;
  };
  for (const Field& field : {Field{"bos", &special.bos},
                             Field{"eos", &special.eos},
                             Field{"unknown", &special.unk},
                             Field{"seperator", &special.sep},  // the format's own spelling
                             Field{"padding", &special.pad},
                             Field{"cls", &special.cls},
                             Field{"mask", &special.mask},
                             Field{"eot", &eot},
                             Field{"eom", &eom}}) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<TokenId> id,
                           ReadId(metadata, field.name, tokens.size()));
    *field.id = id.has_value() ? id : *field.id;
  }
  const auto add_end = [&ends = special.ends](TokenId id) {
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) {
      ends.push_back(id);
    }
  };
  for (const std::optional<TokenId> id : {special.eos, eot, eom}) {
    if (id.has_value()) {
      add_end(*id);
    }
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (std::find(std::begin(kEndNames), std::end(kEndNames), tokens[i]) != std::end(kEndNames)) {
      add_end(static_cast<TokenId>(i));
    }
  }
  return special;
}

}  // namespace quire
