#include "scheduler/text/vocabulary.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"

namespace quire {
namespace {

absl::StatusOr<AddedToken> ParseAddedToken(const JsonNode& node) {
  QUIRE_RETURN_IF_ERROR(node.CheckKeys(
      {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  AddedToken token;
  QUIRE_ASSIGN_OR_RETURN(int64_t id, node.GetInt("id"));
  if (id < 0 || id >= std::numeric_limits<TokenId>::max()) {
    return node.Error(absl::StrCat("id must be in [0, 2^31 - 1) (got ", id, ")"));
  }
  token.id = static_cast<TokenId>(id);
  QUIRE_ASSIGN_OR_RETURN(token.content, node.GetString("content"));
  if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
    return node.Error(absl::StrCat(
        "content must have 1 to ", kMaxAddedTokenBytes, " bytes (got ", token.content.size(), ")"));
  }
  QUIRE_ASSIGN_OR_RETURN(token.single_word, node.GetBool("single_word"));
  QUIRE_ASSIGN_OR_RETURN(token.lstrip, node.GetBool("lstrip"));
  QUIRE_ASSIGN_OR_RETURN(token.rstrip, node.GetBool("rstrip"));
  QUIRE_ASSIGN_OR_RETURN(token.normalized, node.GetBool("normalized"));
  QUIRE_ASSIGN_OR_RETURN(token.special, node.GetBool("special"));
  return token;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Vocabulary>> Vocabulary::Create(const JsonNode& root) {
  auto vocabulary = absl::WrapUnique(new Vocabulary());
  QUIRE_ASSIGN_OR_RETURN(JsonNode model, root.Get("model"));
  QUIRE_ASSIGN_OR_RETURN(JsonNode vocab, model.Get("vocab"));
  QUIRE_RETURN_IF_ERROR(vocabulary->ReadModel(vocab));
  if (root.Has("added_tokens")) {
    QUIRE_ASSIGN_OR_RETURN(std::vector<JsonNode> added, root.GetArray("added_tokens"));
    QUIRE_RETURN_IF_ERROR(vocabulary->ReadAdded(added));
  }
  QUIRE_RETURN_IF_ERROR(vocabulary->CheckSpan(root));
  QUIRE_RETURN_IF_ERROR(vocabulary->Index(root));
  return std::unique_ptr<const Vocabulary>(std::move(vocabulary));
}

absl::Status Vocabulary::ReadModel(const JsonNode& vocab) {
  if (!vocab.json().is_object()) {
    return vocab.Error("must be an object");
  }
  model_tokens_.reserve(vocab.json().size());
  for (const auto& [text, id] : vocab.json().items()) {
    // A negative number becomes a huge number here, so that the limit refuses it too.
    uint64_t value = id.is_number_integer() ? id.get<uint64_t>() : uint64_t{UINT64_MAX};
    if (value >= uint64_t{std::numeric_limits<TokenId>::max()}) {
      return vocab.Error("every id must be an integer in [0, 2^31 - 1)", text);
    }
    if (text.size() > kMaxTokenBytes) {
      return vocab.Error(absl::StrCat(
          "a token must have at most ", kMaxTokenBytes, " bytes (got ", text.size(), ")"));
    }
    model_tokens_.emplace_back(text, static_cast<TokenId>(value));
  }
  if (model_tokens_.empty()) {
    return vocab.Error("must not be empty");
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::ReadAdded(const std::vector<JsonNode>& nodes) {
  added_tokens_.reserve(nodes.size());
  for (const JsonNode& node : nodes) {
    QUIRE_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(node));
    added_bytes_ += token.content.size();
    added_tokens_.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::CheckSpan(const JsonNode& root) const {
  int64_t largest = 0;
  for (const auto& [text, id] : model_tokens_) {
    largest = std::max<int64_t>(largest, id);
  }
  for (const AddedToken& token : added_tokens_) {
    largest = std::max<int64_t>(largest, token.id);
  }
  int64_t limit = 2 * static_cast<int64_t>(model_tokens_.size() + added_tokens_.size());
  if (largest >= limit) {
    return root.Error(absl::StrCat("token ids must be below twice the number of tokens (got ",
                                   largest,
                                   ", limit ",
                                   limit,
                                   ")"));
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::Index(const JsonNode& root) {
  int32_t size = 0;
  for (const auto& [text, id] : model_tokens_) {
    size = std::max(size, id + 1);
  }
  for (const AddedToken& token : added_tokens_) {
    size = std::max(size, token.id + 1);
  }
  tokens_.resize(static_cast<size_t>(size));
  ids_.reserve(model_tokens_.size() + added_tokens_.size());
  for (const auto& [text, id] : model_tokens_) {
    Token& token = tokens_[static_cast<size_t>(id)];
    if (token.exists) {
      return root.Error(absl::StrCat("model.vocab: two tokens have the id ", id));
    }
    token = {.text = text, .exists = true, .in_model = true, .special = false};
    ids_.emplace(text, id);
  }
  std::vector<bool> added(tokens_.size(), false);
  for (const AddedToken& added_token : added_tokens_) {
    Token& token = tokens_[static_cast<size_t>(added_token.id)];
    if (added[static_cast<size_t>(added_token.id)]) {
      return root.Error(absl::StrCat("added_tokens: two tokens have the id ", added_token.id));
    }
    added[static_cast<size_t>(added_token.id)] = true;
    auto [it, inserted] = ids_.emplace(added_token.content, added_token.id);
    if (it->second != added_token.id || (token.exists && token.text != added_token.content)) {
      return root.Error(absl::StrCat("added_tokens: the token with id ",
                                     added_token.id,
                                     " disagrees with another token of the same id or text"));
    }
    token.text = it->first;
    token.exists = true;
    token.special = added_token.special;
  }
  return absl::OkStatus();
}

std::optional<TokenId> Vocabulary::Find(std::string_view text) const {
  auto it = ids_.find(text);
  return it == ids_.end() ? std::nullopt : std::optional<TokenId>(it->second);
}

std::optional<TokenId> Vocabulary::FindInModel(std::string_view text) const {
  std::optional<TokenId> id = Find(text);
  return id.has_value() && IsInModel(*id) ? id : std::nullopt;
}

}  // namespace quire
