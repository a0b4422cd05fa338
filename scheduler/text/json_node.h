// JsonNode is a JSON value and its path in the file. Every error about the value names the path:
// "pre_tokenizer.pretokenizers[1].behavior: is not known (got \"Foo\")".
//
// Thread safety: a value type that points to a Json; the Json must outlive the node.
// Errors:        kInvalidArgument, reason TOKENIZER.
#ifndef QUIRE_SCHEDULER_TEXT_JSON_NODE_H_
#define QUIRE_SCHEDULER_TEXT_JSON_NODE_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/json/json.h"

namespace quire {

class JsonNode {
 public:
  JsonNode(const Json* json, std::string path) : json_(json), path_(std::move(path)) {}

  const Json& json() const { return *json_; }
  const std::string& path() const { return path_; }

  // Returns the error "path: rule".
  absl::Status Error(std::string_view rule) const;
  // Returns the error "path: rule (got "text")", with text made printable.
  absl::Status Error(std::string_view rule, std::string_view text) const;

  // True if this value is an object whose member `key` exists and is not null.
  bool Has(const char* key) const;
  absl::StatusOr<JsonNode> Get(const char* key) const;
  absl::StatusOr<std::string> GetString(const char* key) const;
  absl::StatusOr<bool> GetBool(const char* key) const;
  // Returns fallback if the member is absent or null.
  absl::StatusOr<bool> GetBool(const char* key, bool fallback) const;
  absl::StatusOr<int64_t> GetInt(const char* key) const;
  // Returns the elements of the member, which must be an array.
  absl::StatusOr<std::vector<JsonNode>> GetArray(const char* key) const;

  // Returns an error if the object has a member outside `known`, so that no unknown setting is
  // ignored.
  absl::Status CheckKeys(std::initializer_list<std::string_view> known) const;

 private:
  const Json* json_;
  std::string path_;
};

// Returns the leaves, in order, of a component of tokenizer.json (such as `normalizer`). A
// component is a leaf or {"type": "Sequence", <list_key>: [components]}, nested up to 16 deep, with
// at most 64 leaves. A null component has no leaves.
absl::StatusOr<std::vector<JsonNode>> FlattenSequence(const JsonNode& node, const char* list_key);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_JSON_NODE_H_
