#include "scheduler/text/gguf_tokenizer.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "common/base/fold_hash.h"
#include "common/base/ids.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/gguf_special_tokens.h"
#include "scheduler/text/byte_alphabet.h"
#include "scheduler/text/byte_fallback.h"
#include "scheduler/text/gguf_pre_tokenizer.h"
#include "scheduler/text/spm_merges.h"
#include "scheduler/text/utf8.h"
#include "scheduler/text/vocabulary.h"

namespace quire {
namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";
constexpr std::string_view kKeyPrefix = "tokenizer.ggml.";
constexpr double kMaxScore = 1e30;
// Upper bound on the tokens, and on the merges. Each takes some hundred bytes of memory. The values
// of a tokenizer.json have the same bound.
constexpr size_t kMaxElements = 4'000'000;
constexpr char kSpmSpace[] = "\xE2\x96\x81";  // U+2581, which stands for a space in SentencePiece

// The tokens of a file, after ReadVocabulary has checked them.
struct GgufVocabulary {
  std::vector<std::string_view> tokens;  // by id; a text may be empty
  std::vector<GgufTokenType> types;
  absl::flat_hash_map<std::string_view, TokenId> ids;  // by text; without empty texts

  bool HasType(std::string_view text, std::initializer_list<GgufTokenType> any_of) const {
    const auto found = ids.find(text);
    return found != ids.end() &&
           std::find(any_of.begin(), any_of.end(), types[static_cast<size_t>(found->second)]) !=
               any_of.end();
  }
  // Returns true if the token belongs to the BPE model's vocabulary. The other types, kUnknown and
  // kControl, match only as added tokens.
  bool IsInModel(std::string_view text) const {
    return HasType(text,
                   {GgufTokenType::kUndefined,
                    GgufTokenType::kNormal,
                    GgufTokenType::kUserDefined,
                    GgufTokenType::kUnused,
                    GgufTokenType::kByte});
  }
};

absl::StatusOr<std::vector<std::string_view>> ReadStrings(const GgufMetadata& metadata,
                                                          std::string_view key) {
  QUIRE_ASSIGN_OR_RETURN(std::vector<std::string_view> strings, metadata.GetStrings(key));
  if (strings.size() > kMaxElements) {
    return metadata.KeyError(
        key,
        absl::StrCat("must have at most ", kMaxElements, " elements (got ", strings.size(), ")"));
  }
  return strings;
}

absl::StatusOr<GgufVocabulary> ReadVocabulary(const GgufMetadata& metadata) {
  GgufVocabulary vocabulary;
  QUIRE_ASSIGN_OR_RETURN(vocabulary.tokens, ReadStrings(metadata, kGgufTokensKey));
  QUIRE_ASSIGN_OR_RETURN(vocabulary.types, ReadGgufTokenTypes(metadata, vocabulary.tokens.size()));
  vocabulary.ids.reserve(vocabulary.tokens.size());
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string_view text = vocabulary.tokens[i];
    const bool is_added = vocabulary.types[i] == GgufTokenType::kControl ||
                          vocabulary.types[i] == GgufTokenType::kUserDefined ||
                          vocabulary.types[i] == GgufTokenType::kUnknown;
    const size_t max_bytes = is_added ? kMaxAddedTokenBytes : kMaxTokenBytes;
    if (text.size() > max_bytes) {
      return metadata.KeyError(
          kGgufTokensKey,
          absl::StrCat(
              "token ", i, " must have at most ", max_bytes, " bytes (got ", text.size(), ")"));
    }
    if (!IsValidUtf8(text)) {
      return metadata.KeyError(kGgufTokensKey, absl::StrCat("token ", i, " is not valid UTF-8"));
    }
    if (text.empty()) {
      continue;
    }
    const auto [first, is_new] = vocabulary.ids.emplace(text, static_cast<TokenId>(i));
    if (!is_new) {
      return metadata.KeyError(
          kGgufTokensKey,
          absl::StrCat("tokens ", first->second, " and ", i, " have the same text"));
    }
  }
  return vocabulary;
}

// Returns the field model.vocab of tokenizer.json: the ids of the BPE model's tokens, and of unk.
Json VocabularyJson(const GgufVocabulary& vocabulary, std::optional<TokenId> unk) {
  Json json = Json::object();
  for (const auto& [text, id] : vocabulary.ids) {
    if (vocabulary.IsInModel(text) || id == unk) {
      json[std::string(text)] = id;
    }
  }
  return json;
}

Json AddedTokens(const GgufVocabulary& vocabulary) {
  Json json = Json::array();
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const GgufTokenType type = vocabulary.types[i];
    const bool is_special = type == GgufTokenType::kControl || type == GgufTokenType::kUnknown;
    if (vocabulary.tokens[i].empty() || (!is_special && type != GgufTokenType::kUserDefined)) {
      continue;
    }
    json.push_back({{"id", i},
                    {"content", std::string(vocabulary.tokens[i])},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", is_special}});
  }
  return json;
}

// Returns a TemplateProcessing that puts bos before each text and eos after it, if the file says
// so.
absl::StatusOr<Json> PostProcessorJson(const GgufMetadata& metadata,
                                       const GgufVocabulary& vocabulary,
                                       bool adds_bos_by_default) {
  QUIRE_ASSIGN_OR_RETURN(const GgufSpecialTokens special, ReadGgufSpecialTokens(metadata));
  Json single = Json::array();
  Json names = Json::object();
  const auto add =
      [&](std::string_view which, bool by_default, std::optional<TokenId> id) -> absl::Status {
    const std::string key = absl::StrCat("tokenizer.ggml.add_", ToAbsl(which), "_token");
    QUIRE_ASSIGN_OR_RETURN(const bool adds, IfMissing(metadata.GetBool(key), by_default));
    const bool has_token = id.has_value() && !vocabulary.tokens[static_cast<size_t>(*id)].empty();
    if (!adds || (!has_token && !metadata.Has(key))) {
      return absl::OkStatus();
    }
    if (!has_token) {
      return metadata.KeyError(
          key, absl::StrCat("is true, but the file has no ", ToAbsl(which), " token"));
    }
    const std::string text(vocabulary.tokens[static_cast<size_t>(*id)]);
    single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    names[text] = {{"id", text}, {"ids", Json::array({*id})}, {"tokens", Json::array({text})}};
    return absl::OkStatus();
  };
  QUIRE_RETURN_IF_ERROR(add("bos", adds_bos_by_default, special.bos));
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  QUIRE_RETURN_IF_ERROR(add("eos", false, special.eos));
  return Json{{"type", "TemplateProcessing"},
              {"single", std::move(single)},
              {"pair", Json::array()},
              {"special_tokens", std::move(names)}};
}

// Returns an error unless the vocabulary has a token for each byte from range.first to
// range.second. text_of(byte) returns the text of the byte's token.
template <typename TextOf>
absl::Status CheckBytes(const GgufMetadata& metadata,
                        const GgufVocabulary& vocabulary,
                        std::pair<int, int> range,
                        TextOf text_of) {
  for (int byte = range.first; byte <= range.second; ++byte) {
    if (!vocabulary.IsInModel(text_of(static_cast<uint8_t>(byte)))) {
      return metadata.KeyError(kGgufTokensKey, absl::StrCat("has no token for the byte ", byte));
    }
  }
  return absl::OkStatus();
}

// Reads the merges, each of which is a text "LEFT RIGHT". LEFT may begin with a space.
absl::StatusOr<Json> ReadMerges(const GgufMetadata& metadata, const GgufVocabulary& vocabulary) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::string_view> merges,
                         ReadStrings(metadata, kMergesKey));
  Json json = Json::array();
  std::string merged;
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ', 1);
    if (space == std::string_view::npos) {
      return metadata.KeyError(
          kMergesKey, absl::StrCat("merge ", i, " must be two tokens separated by a space"));
    }
    const std::string_view left = merges[i].substr(0, space);
    const std::string_view right = merges[i].substr(space + 1);
    merged.assign(left).append(right);
    for (const std::string_view part : {left, right, std::string_view(merged)}) {
      if (!vocabulary.IsInModel(part)) {
        return metadata.KeyError(
            kMergesKey,
            absl::StrCat("merge ",
                         i,
                         " names a token that is not in the vocabulary (got \"",
                         Printable(part, /*max_bytes=*/64),
                         "\")"));
      }
    }
    json.push_back(Json::array({std::string(left), std::string(right)}));
  }
  return json;
}

absl::StatusOr<Json> ByteLevelJson(const GgufMetadata& metadata, const GgufVocabulary& vocabulary) {
  // Requires tokens only for printable ASCII. Encode drops other bytes that have no token, as in
  // Hugging Face. SmolLM's vocabulary has no tokens for 21 bytes.
  QUIRE_RETURN_IF_ERROR(CheckBytes(metadata, vocabulary, {' ', '~'}, [](uint8_t byte) {
    std::string text;
    AppendUtf8(ByteToCharacter(byte), &text);
    return text;
  }));
  QUIRE_ASSIGN_OR_RETURN(GgufPreTokenizer pre, ReadGgufPreTokenizer(metadata));
  QUIRE_ASSIGN_OR_RETURN(Json merges, ReadMerges(metadata, vocabulary));
  QUIRE_ASSIGN_OR_RETURN(Json post_processor,
                         PostProcessorJson(metadata, vocabulary, pre.adds_bos));
  return Json{{"added_tokens", AddedTokens(vocabulary)},
              {"normalizer", std::move(pre.normalizer)},
              {"pre_tokenizer", std::move(pre.pre_tokenizer)},
              {"post_processor", std::move(post_processor)},
              {"decoder", {{"type", "ByteLevel"}}},
              {"model",
               {{"type", "BPE"},
                {"ignore_merges", pre.ignore_merges},
                {"vocab", VocabularyJson(vocabulary, std::nullopt)},
                {"merges", std::move(merges)}}}};
}

absl::StatusOr<Json> MergesOfScores(const GgufMetadata& metadata,
                                    const GgufVocabulary& vocabulary) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<double> scores,
                         metadata.GetFloats(kScoresKey, -kMaxScore, kMaxScore));
  if (scores.size() != vocabulary.tokens.size()) {
    return metadata.KeyError(kScoresKey,
                             absl::StrCat("must have an element for each token (got ",
                                          scores.size(),
                                          " for ",
                                          vocabulary.tokens.size(),
                                          ")"));
  }
  std::vector<SpmToken> tokens;
  for (size_t i = 0; i < scores.size(); ++i) {
    // SentencePiece finds user-defined tokens before it merges, and makes byte tokens after it has
    // merged. So neither kind takes part in merges.
    const bool is_merged = vocabulary.HasType(
        vocabulary.tokens[i],
        {GgufTokenType::kUndefined, GgufTokenType::kNormal, GgufTokenType::kUnused});
    if (is_merged) {
      tokens.push_back({.text = vocabulary.tokens[i], .score = scores[i]});
    }
  }
  const std::optional<std::vector<SpmMerge>> merges = SpmMerges(tokens);
  if (!merges.has_value()) {
    return metadata.KeyError(kGgufTokensKey, "the tokens are too long, or have too many merges");
  }
  Json json = Json::array();
  for (const SpmMerge& merge : *merges) {
    json.push_back(Json::array({std::string(merge.left), std::string(merge.right)}));
  }
  return json;
}

absl::StatusOr<Json> SentencePieceJson(const GgufMetadata& metadata,
                                       const GgufVocabulary& vocabulary) {
  QUIRE_RETURN_IF_ERROR(CheckBytes(metadata, vocabulary, {0, 255}, ByteTokenText));
  QUIRE_ASSIGN_OR_RETURN(const GgufSpecialTokens special, ReadGgufSpecialTokens(metadata));
  if (!special.unk.has_value() || vocabulary.tokens[static_cast<size_t>(*special.unk)].empty()) {
    return metadata.KeyError("tokenizer.ggml.unknown_token_id", "is no token");
  }
  QUIRE_ASSIGN_OR_RETURN(Json merges, MergesOfScores(metadata, vocabulary));
  QUIRE_ASSIGN_OR_RETURN(Json post_processor,
                         PostProcessorJson(metadata, vocabulary, /*adds_bos_by_default=*/true));
  QUIRE_ASSIGN_OR_RETURN(const bool adds_space,
                         IfMissing(metadata.GetBool("tokenizer.ggml.add_space_prefix"), true));
  Json normalizers = Json::array();
  Json decoders =
      Json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpmSpace}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}});
  if (adds_space) {
    normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpmSpace}});
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  normalizers.push_back(
      {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpmSpace}});
  return Json{{"added_tokens", AddedTokens(vocabulary)},
              {"normalizer", {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}}},
              {"pre_tokenizer", nullptr},
              {"post_processor", std::move(post_processor)},
              {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}},
              {"model",
               {{"type", "BPE"},
                {"unk_token", std::string(vocabulary.tokens[static_cast<size_t>(*special.unk)])},
                {"fuse_unk", true},
                {"byte_fallback", true},
                {"vocab", VocabularyJson(vocabulary, special.unk)},
                {"merges", std::move(merges)}}}};
}

}  // namespace

absl::StatusOr<Json> TokenizerJsonFromGguf(const GgufMetadata& metadata) {
  QUIRE_ASSIGN_OR_RETURN(const std::string_view model, metadata.GetString(kGgufTokenizerModelKey));
  if (model != "gpt2" && model != "llama") {
    return metadata.KeyError(
        kGgufTokenizerModelKey,
        absl::StrCat("must be one of gpt2, llama (got ", Printable(model, /*max_bytes=*/64), ")"));
  }
  QUIRE_ASSIGN_OR_RETURN(const GgufVocabulary vocabulary, ReadVocabulary(metadata));
  return model == "gpt2" ? ByteLevelJson(metadata, vocabulary)
                         : SentencePieceJson(metadata, vocabulary);
}

uint64_t DigestOfGgufTokenizer(const GgufMetadata& metadata) {
  FoldHash digest;
  for (const auto& [key, value] : metadata.values()) {
    if (!std::string_view(key).starts_with(kKeyPrefix)) {
      continue;
    }
    digest.AddBytes(key);
    digest.AddInt(static_cast<int64_t>(value.type));
    digest.AddInt(static_cast<int64_t>(value.element_type));
    digest.AddBytes({reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size()});
    for (const uint32_t end : value.ends) {
      digest.AddInt(end);
    }
  }
  return digest.value();
}

}  // namespace quire
