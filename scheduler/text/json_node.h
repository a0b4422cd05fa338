// JsonNode is a JSON value that knows its place in the file, so that every error about it names the
// place: "pre_tokenizer.pretokenizers[1].behavior: is not known (got \"Foo\")".
//
// Thread safety: a value type over a Json that must outlive it.
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

  // "path: rule".
  absl::Status Error(std::string_view rule) const;
  // "path: rule (got "text")", with text made safe to print.
  absl::Status Error(std::string_view rule, std::string_view text) const;

  // Whether this is an object with the member, and the member is not null.
  bool Has(const char* key) const;
  absl::StatusOr<JsonNode> Get(const char* key) const;
  absl::StatusOr<std::string> GetString(const char* key) const;
  absl::StatusOr<bool> GetBool(const char* key) const;
  // Returns fallback if the member is absent or null.
  absl::StatusOr<bool> GetBool(const char* key, bool fallback) const;
  absl::StatusOr<int64_t> GetInt(const char* key) const;
  // The elements of the array member.
  absl::StatusOr<std::vector<JsonNode>> GetArray(const char* key) const;

  // Refuses an object with any other member, so that no unknown setting is ignored.
  absl::Status CheckKeys(std::initializer_list<std::string_view> known) const;

 private:
  const Json* json_;
  std::string path_;
};

// The leaves of a component that may be {"type": "Sequence", <list_key>: [...]}, nested up to 16
// deep, in order, at most 64 of them. A null component has none.
absl::StatusOr<std::vector<JsonNode>> FlattenSequence(const JsonNode& node, const char* list_key);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_TEXT_JSON_NODE_H_
