#include "scheduler/text/post_processor.h"

#include <string>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"

namespace quire {
namespace {

// Returns the token ids that a special token's name stands for in a template.
absl::StatusOr<std::vector<TokenId>> TemplateIds(const JsonNode& specials,
                                                 const std::string& name,
                                                 const Vocabulary& vocabulary) {
  QUIRE_ASSIGN_OR_RETURN(JsonNode special, specials.Get(name.c_str()));
  QUIRE_RETURN_IF_ERROR(special.CheckKeys({"id", "ids", "tokens"}));
  QUIRE_ASSIGN_OR_RETURN(JsonNode items, special.Get("ids"));
  if (!items.json().is_array()) {
    return items.Error("must be an array");
  }
  std::vector<TokenId> ids;
  // Makes no JsonNode for an item. Each node would copy the path, which can be long, because it
  // contains the special token's name.
  for (const Json& item : items.json()) {
    if (!item.is_number_integer() ||
        item.get<uint64_t>() >= static_cast<uint64_t>(vocabulary.size()) ||
        !vocabulary.Contains(static_cast<TokenId>(item.get<uint64_t>()))) {
      return items.Error("every entry must be the id of a token");
    }
    ids.push_back(static_cast<TokenId>(item.get<uint64_t>()));
  }
  return ids;
}

// Returns the id of a pair like ["</s>", 2], a token's text and its id.
absl::StatusOr<TokenId> TokenPair(const JsonNode& node,
                                  const char* key,
                                  const Vocabulary& vocabulary) {
  QUIRE_ASSIGN_OR_RETURN(std::vector<JsonNode> pair, node.GetArray(key));
  if (pair.size() != 2 || !pair[0].json().is_string() || !pair[1].json().is_number_integer()) {
    return node.Error(absl::StrCat(key, " must be an array of a token and its id"));
  }
  uint64_t id = pair[1].json().get<uint64_t>();
  if (id >= static_cast<uint64_t>(vocabulary.size()) ||
      !vocabulary.Contains(static_cast<TokenId>(id))) {
    return pair[1].Error("must be the id of a token");
  }
  return static_cast<TokenId>(id);
}

}  // namespace

absl::StatusOr<PostProcessor> PostProcessor::Parse(const JsonNode& node,
                                                   const Vocabulary& vocabulary) {
  PostProcessor post_processor;
  QUIRE_ASSIGN_OR_RETURN(std::vector<JsonNode> leaves, FlattenSequence(node, "processors"));
  for (const JsonNode& leaf : leaves) {
    QUIRE_ASSIGN_OR_RETURN(std::string type, leaf.GetString("type"));
    if (type == "TemplateProcessing") {
      QUIRE_RETURN_IF_ERROR(post_processor.AddTemplate(leaf, vocabulary));
    } else if (type == "RobertaProcessing") {
      QUIRE_RETURN_IF_ERROR(post_processor.AddRoberta(leaf, vocabulary));
    } else if (type == "ByteLevel") {
      QUIRE_RETURN_IF_ERROR(
          leaf.CheckKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    } else {
      return leaf.Error("type of post_processor is not supported", type);
    }
  }
  return post_processor;
}

absl::Status PostProcessor::CheckRoom(const JsonNode& node, size_t num_ids) const {
  if (prefix_.size() + suffix_.size() + num_ids > kMaxSpecialIds) {
    return node.Error(absl::StrCat("must not insert more than ", kMaxSpecialIds, " token ids"));
  }
  return absl::OkStatus();
}

absl::Status PostProcessor::AddTemplate(const JsonNode& node, const Vocabulary& vocabulary) {
  QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type", "single", "pair", "special_tokens"}));
  QUIRE_ASSIGN_OR_RETURN(std::vector<JsonNode> items, node.GetArray("single"));
  ptrdiff_t num_before = 0;  // number of this template's ids in front of the text
  bool seen_text = false;
  for (const JsonNode& item : items) {
    QUIRE_RETURN_IF_ERROR(item.CheckKeys({"Sequence", "SpecialToken"}));
    if (item.Has("Sequence")) {
      QUIRE_ASSIGN_OR_RETURN(JsonNode sequence, item.Get("Sequence"));
      QUIRE_ASSIGN_OR_RETURN(std::string id, sequence.GetString("id"));
      if (id != "A" || seen_text) {
        return item.Error("a template for one text must have the sequence A once");
      }
      seen_text = true;
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(JsonNode special, item.Get("SpecialToken"));
    QUIRE_ASSIGN_OR_RETURN(std::string name, special.GetString("id"));
    QUIRE_ASSIGN_OR_RETURN(JsonNode specials, node.Get("special_tokens"));
    QUIRE_ASSIGN_OR_RETURN(std::vector<TokenId> ids, TemplateIds(specials, name, vocabulary));
    QUIRE_RETURN_IF_ERROR(CheckRoom(item, ids.size()));
    if (seen_text) {
      suffix_.insert(suffix_.end(), ids.begin(), ids.end());
    } else {
      prefix_.insert(prefix_.begin() + num_before, ids.begin(), ids.end());
      num_before += static_cast<ptrdiff_t>(ids.size());
    }
  }
  if (!seen_text) {
    return node.Error("a template for one text must have the sequence A once");
  }
  return absl::OkStatus();
}

absl::Status PostProcessor::AddRoberta(const JsonNode& node, const Vocabulary& vocabulary) {
  QUIRE_RETURN_IF_ERROR(node.CheckKeys({"type", "sep", "cls", "trim_offsets", "add_prefix_space"}));
  QUIRE_ASSIGN_OR_RETURN(TokenId sep, TokenPair(node, "sep", vocabulary));
  QUIRE_ASSIGN_OR_RETURN(TokenId cls, TokenPair(node, "cls", vocabulary));
  QUIRE_RETURN_IF_ERROR(CheckRoom(node, 2));
  prefix_.insert(prefix_.begin(), cls);
  suffix_.push_back(sep);
  return absl::OkStatus();
}

}  // namespace quire
