#include "scheduler/text/json_node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

constexpr size_t kMaxQuotedBytes = 64;
constexpr int kMaxSequenceDepth = 16;
constexpr size_t kMaxSequenceLeaves = 64;  // each leaf costs a pass over the text

}  // namespace

absl::Status JsonNode::Error(std::string_view rule) const {
  return InvalidArgument("TOKENIZER", absl::StrCat(path_, path_.empty() ? "" : ": ", ToAbsl(rule)));
}

absl::Status JsonNode::Error(std::string_view rule, std::string_view text) const {
  std::string quoted = absl::CEscape(ToAbsl(text.substr(0, kMaxQuotedBytes)));
  return Error(absl::StrCat(
      ToAbsl(rule), " (got \"", quoted, text.size() > kMaxQuotedBytes ? "...\")" : "\")"));
}

bool JsonNode::Has(const char* key) const {
  if (!json_->is_object()) {
    return false;
  }
  auto it = json_->find(key);
  return it != json_->end() && !it->is_null();
}

absl::StatusOr<JsonNode> JsonNode::Get(const char* key) const {
  if (!json_->is_object()) {
    return Error("must be an object");
  }
  JsonNode child(nullptr, path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key));
  auto it = json_->find(key);
  if (it == json_->end()) {
    return child.Error("is missing");
  }
  child.json_ = &*it;
  return child;
}

absl::StatusOr<std::string> JsonNode::GetString(const char* key) const {
  QUIRE_ASSIGN_OR_RETURN(JsonNode child, Get(key));
  if (!child.json_->is_string()) {
    return child.Error("must be a string");
  }
  return child.json_->get_ref<const std::string&>();
}

absl::StatusOr<bool> JsonNode::GetBool(const char* key) const {
  QUIRE_ASSIGN_OR_RETURN(JsonNode child, Get(key));
  if (!child.json_->is_boolean()) {
    return child.Error("must be true or false");
  }
  return child.json_->get<bool>();
}

absl::StatusOr<bool> JsonNode::GetBool(const char* key, bool fallback) const {
  return Has(key) ? GetBool(key) : fallback;
}

absl::StatusOr<int64_t> JsonNode::GetInt(const char* key) const {
  QUIRE_ASSIGN_OR_RETURN(JsonNode child, Get(key));
  if (!child.json_->is_number_integer() ||
      (child.json_->is_number_unsigned() && child.json_->get<uint64_t>() > uint64_t{INT64_MAX})) {
    return child.Error("must be an integer");
  }
  return child.json_->get<int64_t>();
}

absl::StatusOr<std::vector<JsonNode>> JsonNode::GetArray(const char* key) const {
  QUIRE_ASSIGN_OR_RETURN(JsonNode child, Get(key));
  if (!child.json_->is_array()) {
    return child.Error("must be an array");
  }
  std::vector<JsonNode> items;
  items.reserve(child.json_->size());
  for (size_t i = 0; i < child.json_->size(); ++i) {
    items.emplace_back(&(*child.json_)[i], absl::StrCat(child.path_, "[", i, "]"));
  }
  return items;
}

absl::Status JsonNode::CheckKeys(std::initializer_list<std::string_view> known) const {
  if (!json_->is_object()) {
    return Error("must be an object");
  }
  for (const auto& [key, value] : json_->items()) {
    if (std::find(known.begin(), known.end(), std::string_view(key)) == known.end()) {
      return Error("has an unknown member", key);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<JsonNode>> FlattenSequence(const JsonNode& node, const char* list_key) {
  struct Open {
    JsonNode node;
    int depth;
  };
  std::vector<JsonNode> leaves;
  std::vector<Open> open;  // a stack of nodes still to visit
  if (!node.json().is_null()) {
    open.push_back({node, 0});
  }
  while (!open.empty()) {
    auto [current, depth] = std::move(open.back());
    open.pop_back();
    QUIRE_ASSIGN_OR_RETURN(std::string type, current.GetString("type"));
    if (type != "Sequence") {
      if (leaves.size() == kMaxSequenceLeaves) {
        return node.Error(absl::StrCat("must not have more than ", leaves.size(), " steps"));
      }
      leaves.push_back(std::move(current));
      continue;
    }
    if (depth == kMaxSequenceDepth) {
      return node.Error(absl::StrCat("sequences must not be nested deeper than ", depth));
    }
    QUIRE_RETURN_IF_ERROR(current.CheckKeys({"type", list_key}));
    QUIRE_ASSIGN_OR_RETURN(std::vector<JsonNode> items, current.GetArray(list_key));
    for (auto item = items.rbegin(); item != items.rend(); ++item) {
      open.push_back({std::move(*item), depth + 1});
    }
  }
  return leaves;
}

}  // namespace quire
