#include "scheduler/text/token_decoder.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "scheduler/text/byte_alphabet.h"
#include "scheduler/text/byte_fallback.h"
#include "scheduler/text/utf8.h"

namespace quire {
namespace {

// Upper bound on the bytes of an unfinished UTF-8 character.
constexpr size_t kMaxPendingBytes = 3;

absl::StatusOr<std::string> TypeOf(const JsonNode& node) { return node.GetString("type"); }

bool IsOneCharacter(std::string_view text) {
  return !text.empty() && NextUtf8(text).length == text.size();
}

}  // namespace

absl::StatusOr<TokenDecoder> TokenDecoder::Parse(const JsonNode& node,
                                                 const Vocabulary& vocabulary,
                                                 const std::vector<std::string>& added_texts) {
  TokenDecoder decoder;
  QUIRE_ASSIGN_OR_RETURN(std::vector<JsonNode> leaves, FlattenSequence(node, "decoders"));
  if (leaves.empty()) {
    return node.Error("must not be null or empty");
  }
  QUIRE_RETURN_IF_ERROR(decoder.ParseLeaves(leaves));
  QUIRE_RETURN_IF_ERROR(decoder.ReadTokens(vocabulary, added_texts));
  return decoder;
}

absl::Status TokenDecoder::ParseLeaves(const std::vector<JsonNode>& leaves) {
  QUIRE_ASSIGN_OR_RETURN(std::string first, TypeOf(leaves[0]));
  if (first != "ByteLevel" && first != "Metaspace") {
    return ParseChain(leaves);
  }
  if (leaves.size() > 1) {
    return leaves[1].Error("no decoder may follow ByteLevel or Metaspace");
  }
  if (first == "Metaspace") {
    return ParseMetaspace(leaves[0]);
  }
  kind_ = Kind::kByteLevel;
  return leaves[0].CheckKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

// Accepts any number of Replace, then at most one each of ByteFallback, Fuse and Strip, in this
// order. Strip is accepted only after Fuse, since without Fuse it would strip each token instead of
// the whole text.
absl::Status TokenDecoder::ParseChain(const std::vector<JsonNode>& leaves) {
  kind_ = Kind::kSentencePiece;
  bool fused = false;
  bool stripped = false;
  for (const JsonNode& leaf : leaves) {
    QUIRE_ASSIGN_OR_RETURN(std::string type, TypeOf(leaf));
    if (stripped) {
      return leaf.Error("no decoder may follow Strip");
    }
    if (type == "Replace" && !has_byte_fallback_ && !fused) {
      QUIRE_RETURN_IF_ERROR(AddReplace(leaf));
    } else if (type == "ByteFallback" && !has_byte_fallback_ && !fused) {
      QUIRE_RETURN_IF_ERROR(leaf.CheckKeys({"type"}));
      has_byte_fallback_ = true;
    } else if (type == "Fuse" && !fused) {
      QUIRE_RETURN_IF_ERROR(leaf.CheckKeys({"type"}));
      fused = true;
    } else if (type == "Strip" && fused) {
      QUIRE_RETURN_IF_ERROR(AddStrip(leaf));
      stripped = true;
    } else {
      return leaf.Error("type of decoder is not supported at this place", type);
    }
  }
  return absl::OkStatus();
}

absl::Status TokenDecoder::ParseMetaspace(const JsonNode& node) {
  QUIRE_RETURN_IF_ERROR(node.CheckKeys(
      {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"}));
  QUIRE_ASSIGN_OR_RETURN(std::string replacement, node.GetString("replacement"));
  if (!IsOneCharacter(replacement)) {
    return node.Error("replacement must be one character");
  }
  std::string scheme = "always";
  if (node.Has("prepend_scheme")) {
    QUIRE_ASSIGN_OR_RETURN(scheme, node.GetString("prepend_scheme"));
  }
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return node.Error("prepend_scheme must be always, first or never", scheme);
  }
  QUIRE_ASSIGN_OR_RETURN(bool add_prefix_space, node.GetBool("add_prefix_space", true));
  if (!add_prefix_space && scheme != "never") {
    return node.Error("add_prefix_space disagrees with prepend_scheme");
  }
  kind_ = Kind::kMetaspace;
  drops_first_spaces_ = scheme != "never";
  replacements_.push_back({replacement, " "});
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddReplace(const JsonNode& node) {
  QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type", "pattern", "content"}));
  QUIRE_ASSIGN_OR_RETURN(JsonNode pattern, node.Get("pattern"));
  QUIRE_RETURN_IF_ERROR(pattern.CheckKeys({"String"}));
  QUIRE_ASSIGN_OR_RETURN(std::string from, pattern.GetString("String"));
  QUIRE_ASSIGN_OR_RETURN(std::string to, node.GetString("content"));
  if (from.empty()) {
    return pattern.Error("String must not be empty");
  }
  // Tokens are rewritten when the file is loaded. Without this bound, a small file could make them
  // large.
  if (to.size() > from.size()) {
    return node.Error("content must not be longer than the pattern");
  }
  replacements_.push_back({std::move(from), std::move(to)});
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddStrip(const JsonNode& node) {
  QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type", "content", "start", "stop"}));
  QUIRE_ASSIGN_OR_RETURN(strip_character_, node.GetString("content"));
  QUIRE_ASSIGN_OR_RETURN(strip_left_, node.GetInt("start"));
  QUIRE_ASSIGN_OR_RETURN(int64_t stop, node.GetInt("stop"));
  if (!IsOneCharacter(strip_character_) || strip_left_ < 0) {
    return node.Error("content must be one character and start must not be negative");
  }
  if (stop != 0) {
    return node.Error("stop must be 0: the end of a stream cannot be stripped");
  }
  return absl::OkStatus();
}

absl::Status TokenDecoder::ReadTokens(const Vocabulary& vocabulary,
                                      const std::vector<std::string>& added_texts) {
  size_t total_bytes = 0;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    total_bytes += vocabulary.Text(id).size();
  }
  if (total_bytes > std::numeric_limits<uint32_t>::max() / 2) {
    return InvalidArgument("TOKENIZER", "vocabulary: too many bytes of text");
  }
  bytes_.reserve(total_bytes);
  tokens_.resize(static_cast<size_t>(vocabulary.size()));
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.Contains(id)) {
      AddToken(id, vocabulary.Text(id), vocabulary.IsSpecial(id));
    }
  }
  for (size_t i = 0; i < added_texts.size(); ++i) {
    const AddedToken& added = vocabulary.added_tokens()[i];
    if (added_texts[i] != added.content) {
      AddToken(added.id, added_texts[i], added.special);
    }
  }
  return absl::OkStatus();
}

void TokenDecoder::AddToken(TokenId id, std::string_view text, bool special) {
  bool is_loose = false;
  std::string bytes = TextToBytes(text, &is_loose);
  tokens_[static_cast<size_t>(id)] = {.begin = static_cast<uint32_t>(bytes_.size()),
                                      .size = static_cast<uint32_t>(bytes.size()),
                                      .exists = true,
                                      .special = special,
                                      .is_loose = is_loose};
  bytes_ += bytes;
}

std::string TokenDecoder::TextToBytes(std::string_view text, bool* is_loose) const {
  if (kind_ == Kind::kByteLevel) {
    *is_loose = true;
    return AlphabetToBytes(text).value_or(std::string(text));
  }
  std::string bytes(text);
  for (const Replacement& replacement : replacements_) {
    absl::StrReplaceAll({{replacement.from, replacement.to}}, &bytes);
  }
  if (has_byte_fallback_) {
    if (std::optional<uint8_t> byte = ParseByteToken(bytes); byte.has_value()) {
      *is_loose = true;
      return std::string(1, static_cast<char>(*byte));
    }
  }
  return bytes;
}

const TokenDecoder::Token* TokenDecoder::Find(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) {
    return nullptr;
  }
  const Token& token = tokens_[static_cast<size_t>(id)];
  return token.exists ? &token : nullptr;
}

std::string_view TokenDecoder::Bytes(TokenId id) const {
  const Token* token = Find(id);
  return token == nullptr ? std::string_view()
                          : std::string_view(bytes_).substr(token->begin, token->size);
}

DecodeState TokenDecoder::Start() const {
  return {.pending = {}, .strip_left = strip_left_, .at_first_token = true};
}

void TokenDecoder::Append(TokenId id,
                          bool skip_special_tokens,
                          DecodeState* state,
                          std::string* text) const {
  const Token* token = Find(id);
  if (token == nullptr || (skip_special_tokens && token->special)) {
    return;
  }
  std::string_view bytes = Bytes(id);
  bool is_first = std::exchange(state->at_first_token, false);
  if (token->is_loose) {
    AppendLoose(bytes, state, text);
    return;
  }
  FlushPending(state, text);
  if (is_first && drops_first_spaces_) {
    std::string without = absl::StrReplaceAll(ToAbsl(bytes), {{" ", ""}});
    Emit(without, state, text);
  } else {
    Emit(bytes, state, text);
  }
}

void TokenDecoder::Finish(DecodeState* state, std::string* text) const {
  FlushPending(state, text);
}

void TokenDecoder::AppendLoose(std::string_view bytes,
                               DecodeState* state,
                               std::string* text) const {
  std::string joined;
  if (!state->pending.empty()) {
    joined = std::exchange(state->pending, {});
    joined += bytes;
    bytes = joined;
  }
  while (!bytes.empty()) {
    size_t valid = std::min(FindInvalidUtf8(bytes), bytes.size());
    Emit(bytes.substr(0, valid), state, text);
    bytes.remove_prefix(valid);
    if (bytes.empty()) {
      return;
    }
    Utf8Step step = NextUtf8(bytes);
    if (step.unit == Utf8Unit::kIncomplete) {
      state->pending = std::string(bytes);
      return;
    }
    EmitReplacement(step.length, state, text);
    bytes.remove_prefix(step.length);
  }
}

void TokenDecoder::FlushPending(DecodeState* state, std::string* text) const {
  if (!state->pending.empty()) {
    EmitReplacement(state->pending.size(), state, text);
    state->pending.clear();
  }
}

void TokenDecoder::EmitReplacement(size_t bytes, DecodeState* state, std::string* text) const {
  size_t count = kind_ == Kind::kByteLevel ? 1 : bytes;
  for (size_t i = 0; i < count; ++i) {
    Emit(kReplacementCharacter, state, text);
  }
}

void TokenDecoder::Emit(std::string_view characters, DecodeState* state, std::string* text) const {
  while (state->strip_left > 0 && !characters.empty()) {
    if (!characters.starts_with(strip_character_)) {
      state->strip_left = 0;
      break;
    }
    characters.remove_prefix(strip_character_.size());
    --state->strip_left;
  }
  text->append(characters);
}

DecodeState TokenDecoder::StateAfter(std::span<const TokenId> prompt,
                                     bool skip_special_tokens) const {
  DecodeState state = Start();
  std::string ignored;
  for (TokenId id : prompt) {
    if (!state.at_first_token && state.strip_left == 0) {
      // The first token was read, and no leading character can be stripped any more. From here on,
      // only the loose bytes at the prompt's end matter for the state.
      state.pending.clear();
      AppendLoose(LooseTail(prompt, skip_special_tokens), &state, &ignored);
      break;
    }
    Append(id, skip_special_tokens, &state, &ignored);
  }
  return state;
}

// Returns the bytes of the loose tokens (Token::is_loose) at the end of `prompt`, as far back as an
// unfinished character can reach.
std::string TokenDecoder::LooseTail(std::span<const TokenId> prompt,
                                    bool skip_special_tokens) const {
  std::string tail;
  for (size_t i = prompt.size(); i > 0 && tail.size() < kMaxPendingBytes; --i) {
    const Token* token = Find(prompt[i - 1]);
    if (token == nullptr || (skip_special_tokens && token->special)) {
      continue;
    }
    if (!token->is_loose) {
      break;
    }
    tail.insert(0, Bytes(prompt[i - 1]));
  }
  return tail;
}

}  // namespace quire
