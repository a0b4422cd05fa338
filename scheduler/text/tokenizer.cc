#include "scheduler/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/fold_hash.h"
#include "common/base/read_file.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/gguf_file.h"
#include "common/model/model_file.h"
#include "common/model/model_path.h"
#include "scheduler/text/added_token_matcher.h"
#include "scheduler/text/bpe_model.h"
#include "scheduler/text/gguf_tokenizer.h"
#include "scheduler/text/json_node.h"
#include "scheduler/text/normalizer.h"
#include "scheduler/text/post_processor.h"
#include "scheduler/text/pre_tokenizer.h"
#include "scheduler/text/token_decoder.h"
#include "scheduler/text/utf8.h"
#include "scheduler/text/vocabulary.h"

namespace quire {
namespace {

// Upper bound on the size of a tokenizer.json. The largest known (Gemma 3, 262k tokens) has 33 MB.
constexpr int64_t kMaxFileBytes = int64_t{256} << 20;
// Published files have up to two million JSON values: one for a token, up to three for a merge.
constexpr JsonLimits kFileLimits = {.max_values = 4'000'000};

// Returns the component `key` of the file, or a JSON null if the file has no such component.
JsonNode Component(const JsonNode& root, const char* key) {
  static const Json null;
  auto it = root.json().find(key);
  return JsonNode(it == root.json().end() ? &null : &*it, key);
}

// Cuts ranges of a text to parts of the text. Call In() once for each part, from left to right.
class RangeReader {
 public:
  explicit RangeReader(std::span<const ByteRange> ranges) : rest_(ranges) {}

  // Returns the pieces of the ranges that lie in the part, as offsets from the part's begin.
  std::vector<ByteRange> In(ByteRange part) {
    while (!rest_.empty() && rest_[0].end <= part.begin) {
      rest_ = rest_.subspan(1);
    }
    std::vector<ByteRange> found;
    for (const ByteRange& range : rest_) {
      if (range.begin >= part.end) {
        break;
      }
      found.push_back({std::max(range.begin, part.begin) - part.begin,
                       std::min(range.end, part.end) - part.begin});
    }
    return found;
  }

 private:
  std::span<const ByteRange> rest_;
};

}  // namespace

struct Tokenizer::Parts {
  std::unique_ptr<const Vocabulary> vocabulary;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const BpeModel> model;
  PostProcessor post_processor;
  TokenDecoder decoder;
  AddedTokenMatcher original_matcher;    // added tokens matched in the given text
  AddedTokenMatcher normalized_matcher;  // added tokens matched in the normalized text

  // Returns, for each of vocabulary->added_tokens(), the text by which the token is found: the
  // token's content, normalized if AddedToken::normalized is true.
  absl::StatusOr<std::vector<std::string>> AddedTexts() const;
  absl::Status IndexAddedTokens(const std::vector<std::string>& texts);
  // plain_ranges: as in Tokenizer::Encode, but as offsets in the section.
  absl::Status EncodeSection(std::string_view section,
                             bool at_text_start,
                             std::vector<ByteRange> plain_ranges,
                             TextBudget* budget,
                             std::vector<TokenId>* ids) const;
  absl::Status EncodeNormalized(std::string_view normalized,
                                bool at_text_start,
                                std::span<const ByteRange> plain_ranges,
                                TextBudget* budget,
                                std::vector<TokenId>* ids) const;
};

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::LoadGguf(const std::string& path) {
  QUIRE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  QUIRE_ASSIGN_OR_RETURN(const Json json, TokenizerJsonFromGguf(file.metadata()));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = FromJson(json);
  if (!tokenizer.ok()) {
    return Error(tokenizer.status().code(),
                 ReasonOf(tokenizer.status()),
                 absl::StrCat(path, ": tokenizer: ", tokenizer.status().message()));
  }
  (*tokenizer)->file_digest_ = DigestOfGgufTokenizer(file.metadata());
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  if (IsGgufPath(path)) {
    return LoadGguf(path);
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxFileBytes));
  const absl::StatusOr<Json> json = ParseJson(text, kFileLimits);
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      json.ok() ? FromJson(*json) : json.status();
  if (!tokenizer.ok()) {
    return Error(tokenizer.status().code(),
                 ReasonOf(tokenizer.status()),
                 absl::StrCat(path, ": ", tokenizer.status().message()));
  }
  FoldHash digest;
  digest.AddBytes(text);
  (*tokenizer)->file_digest_ = digest.value();
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::LoadOfModel(const std::string& model_path) {
  if (IsGgufPath(model_path)) {
    return LoadGguf(model_path);
  }
  const absl::StatusOr<std::string> path = ResolveModelFile(model_path, "tokenizer.json");
  if (absl::IsNotFound(path.status())) {
    return nullptr;
  }
  if (!path.ok()) {
    return Error(path.status().code(),
                 ReasonOf(path.status()),
                 absl::StrCat(model_path, "/tokenizer.json: ", path.status().message()));
  }
  return Load(*path);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(const Json& json) {
  JsonNode root(&json, "");
  if (!json.is_object()) {
    return InvalidArgument("TOKENIZER", "tokenizer: must be an object");
  }
  // `truncation` and `padding` are accepted and ignored, because they are defaults of training
  // scripts, and do not change how a text is encoded.
  QUIRE_RETURN_IF_ERROR(root.CheckKeys({"version",
                                        "truncation",
                                        "padding",
                                        "added_tokens",
                                        "normalizer",
                                        "pre_tokenizer",
                                        "post_processor",
                                        "decoder",
                                        "model"}));
  if (root.Has("version")) {
    QUIRE_ASSIGN_OR_RETURN(std::string version, root.GetString("version"));
    if (version != "1.0") {
      return InvalidArgument("TOKENIZER", "version: must be 1.0");
    }
  }
  QUIRE_ASSIGN_OR_RETURN(JsonNode model, root.Get("model"));
  auto parts = std::make_unique<Parts>();
  QUIRE_ASSIGN_OR_RETURN(parts->vocabulary, Vocabulary::Create(root));
  const Vocabulary& vocabulary = *parts->vocabulary;
  QUIRE_ASSIGN_OR_RETURN(parts->normalizer, Normalizer::Parse(Component(root, "normalizer")));
  QUIRE_ASSIGN_OR_RETURN(parts->pre_tokenizer,
                         PreTokenizer::Parse(Component(root, "pre_tokenizer")));
  QUIRE_ASSIGN_OR_RETURN(parts->model,
                         BpeModel::Create(model, vocabulary, parts->pre_tokenizer.is_byte_level()));
  QUIRE_ASSIGN_OR_RETURN(parts->post_processor,
                         PostProcessor::Parse(Component(root, "post_processor"), vocabulary));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::string> added_texts, parts->AddedTexts());
  QUIRE_ASSIGN_OR_RETURN(parts->decoder,
                         TokenDecoder::Parse(Component(root, "decoder"), vocabulary, added_texts));
  QUIRE_RETURN_IF_ERROR(parts->IndexAddedTokens(added_texts));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
}

absl::StatusOr<std::vector<std::string>> Tokenizer::Parts::AddedTexts() const {
  // All added tokens share one budget. With a budget for each token, the work for a file with many
  // added tokens would be unbounded.
  TextBudget budget(vocabulary->added_bytes());
  size_t num_bytes = 0;
  std::vector<std::string> texts;
  texts.reserve(vocabulary->added_tokens().size());
  for (const AddedToken& token : vocabulary->added_tokens()) {
    std::string text = token.content;
    absl::Status status =
        token.normalized ? normalizer.Apply(&budget, &text, nullptr) : absl::OkStatus();
    num_bytes += text.size();
    if (status.ok() && !budget.HasRoomFor(num_bytes)) {
      status = budget.status();
    }
    if (!status.ok()) {
      return InvalidArgument(
          "TOKENIZER",
          absl::StrCat("added_tokens: the token with id ", token.id, ": ", status.message()));
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

absl::Status Tokenizer::Parts::IndexAddedTokens(const std::vector<std::string>& texts) {
  for (size_t i = 0; i < texts.size(); ++i) {
    const AddedToken& token = vocabulary->added_tokens()[i];
    AddedTokenMatcher& matcher = token.normalized ? normalized_matcher : original_matcher;
    if (!matcher.Add(texts[i], token)) {
      return InvalidArgument(
          "TOKENIZER",
          absl::StrCat("added_tokens: the token with id ",
                       token.id,
                       " normalizes to an empty text or to the same text as another added token"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::Encode(std::string_view utf8_text,
                                                       bool add_special_tokens,
                                                       bool parse_special) const {
  TextBudget budget(utf8_text.size());
  return Encode(utf8_text, add_special_tokens, parse_special, &budget);
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::Encode(std::string_view utf8_text,
                                                       bool add_special_tokens,
                                                       bool parse_special,
                                                       TextBudget* budget) const {
  return Encode(utf8_text, add_special_tokens, parse_special, {}, budget);
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::Encode(std::string_view utf8_text,
                                                       bool add_special_tokens,
                                                       bool parse_special,
                                                       std::span<const ByteRange> plain_ranges,
                                                       TextBudget* budget) const {
  const ByteRange whole = {0, utf8_text.size()};
  if (!parse_special) {
    plain_ranges = {&whole, 1};
  }
  QUIRE_RETURN_IF_ERROR(CheckUtf8("text", utf8_text));
  std::vector<TokenId> ids;
  if (add_special_tokens) {
    ids = parts_->post_processor.prefix();
  }
  std::vector<TextSection> sections;
  QUIRE_RETURN_IF_ERROR(parts_->original_matcher.Split(utf8_text, plain_ranges, budget, &sections));
  RangeReader plain(parts_->normalized_matcher.has_special() ? plain_ranges
                                                             : std::span<const ByteRange>());
  for (const TextSection& section : sections) {
    if (section.added.has_value()) {
      ids.push_back(*section.added);
    } else {
      const auto begin = static_cast<size_t>(section.text.data() - utf8_text.data());
      QUIRE_RETURN_IF_ERROR(parts_->EncodeSection(section.text,
                                                  /*at_text_start=*/begin == 0,
                                                  plain.In({begin, begin + section.text.size()}),
                                                  budget,
                                                  &ids));
    }
    // Bounds the ids of all sections together, because each section alone may stay below the limit.
    if (!budget->HasRoomFor(ids.size())) {
      return budget->status();
    }
  }
  if (add_special_tokens) {
    const std::vector<TokenId>& suffix = parts_->post_processor.suffix();
    ids.insert(ids.end(), suffix.begin(), suffix.end());
  }
  return ids;
}

absl::Status Tokenizer::Parts::EncodeSection(std::string_view section,
                                             bool at_text_start,
                                             std::vector<ByteRange> plain_ranges,
                                             TextBudget* budget,
                                             std::vector<TokenId>* ids) const {
  if (normalizer.empty()) {
    return EncodeNormalized(section, at_text_start, plain_ranges, budget, ids);
  }
  std::string normalized(section);
  QUIRE_RETURN_IF_ERROR(
      normalizer.Apply(budget, &normalized, plain_ranges.empty() ? nullptr : &plain_ranges));
  return EncodeNormalized(normalized, at_text_start, plain_ranges, budget, ids);
}

absl::Status Tokenizer::Parts::EncodeNormalized(std::string_view normalized,
                                                bool at_text_start,
                                                std::span<const ByteRange> plain_ranges,
                                                TextBudget* budget,
                                                std::vector<TokenId>* ids) const {
  std::vector<TextSection> sections;
  QUIRE_RETURN_IF_ERROR(normalized_matcher.Split(normalized, plain_ranges, budget, &sections));
  PieceList pieces;
  BpeModel::Scratch scratch;
  for (const TextSection& section : sections) {
    if (section.added.has_value()) {
      ids->push_back(*section.added);
      continue;
    }
    bool is_first = at_text_start && section.text.data() == normalized.data();
    QUIRE_RETURN_IF_ERROR(pre_tokenizer.Split(section.text, is_first, budget, &pieces));
    for (const TextSpan& span : pieces.spans) {
      QUIRE_RETURN_IF_ERROR(model->Encode(pieces.Piece(span), budget, &scratch, ids));
    }
  }
  return absl::OkStatus();
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string text;
  DecodeState state = parts_->decoder.Start();
  for (TokenId id : ids) {
    parts_->decoder.Append(id, skip_special_tokens, &state, &text);
  }
  parts_->decoder.Finish(&state, &text);
  return text;
}

int32_t Tokenizer::vocab_size() const { return parts_->vocabulary->size(); }

bool Tokenizer::IsValidId(TokenId id) const { return parts_->vocabulary->Contains(id); }

bool Tokenizer::IsSpecial(TokenId id) const { return parts_->vocabulary->IsSpecial(id); }

std::string_view Tokenizer::TokenText(TokenId id) const { return parts_->vocabulary->Text(id); }

std::string_view Tokenizer::TokenBytes(TokenId id) const { return parts_->decoder.Bytes(id); }

std::optional<TokenId> Tokenizer::FindToken(std::string_view token_text) const {
  return parts_->vocabulary->Find(token_text);
}

const TokenDecoder& Tokenizer::decoder() const { return parts_->decoder; }

}  // namespace quire
