// JsonFields reads the members of one JSON object of a client, and keeps the first error. So a
// parser can read all members, and ask for the status once at the end.
//
// A member that is null counts as absent. A number in a string is not a number; a boolean is not a
// number; 16.0 is an integer. After an error all getters return nullopt or null.
//
// Thread safety: one caller at a time.
// Errors:        kInvalidArgument "PATH: rule" with the reasons FIELD_TYPE, FIELD_RANGE,
//                MISSING_FIELD, CONFLICTING_FIELDS and UNSUPPORTED. No message repeats a text of
//                the client.
// Cost:          the constructor is linear in the number of members; a getter takes constant time.
#ifndef QUIRE_DEPLOY_GATEWAY_OPENAI_JSON_FIELDS_H_
#define QUIRE_DEPLOY_GATEWAY_OPENAI_JSON_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

#include "common/json/json.h"

namespace quire {

class JsonFields {
 public:
  // `path` precedes the names of members in errors, as in "messages[2].". REQUIRES:
  // object.is_object(); `object` outlives the JsonFields.
  explicit JsonFields(OrderedJson& object, std::string path = "");

  std::optional<bool> Bool(std::string_view name);
  std::optional<int64_t> Int64(std::string_view name);
  std::optional<int32_t> Int(std::string_view name);
  std::optional<float> Number(std::string_view name);
  std::optional<std::string> Text(std::string_view name);
  // Reads an array of 32-bit integers. Fails if the array has more than max_items.
  std::vector<int32_t> Ints(std::string_view name, size_t max_items);
  OrderedJson* Object(std::string_view name);
  OrderedJson* Array(std::string_view name);
  // Returns the member, whatever its type, or null if the member is absent or null.
  OrderedJson* Any(std::string_view name);
  // True if the object has the member, even if it is null.
  bool Has(std::string_view name) const { return members_.contains(name); }

  // Fails with UNSUPPORTED if the member is set.
  void Refuse(std::string_view name);
  // Records an error of the member `name`, unless an earlier error is recorded.
  void Fail(std::string_view reason, std::string_view name, std::string_view rule);
  void Keep(const absl::Status& status) { status_.Update(status); }

  const absl::Status& status() const { return status_; }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  absl::flat_hash_map<std::string_view, OrderedJson*> members_;
  absl::Status status_;
};

// Returns the value as an integer of 64 bits, or nullopt.
std::optional<int64_t> WholeNumber(const OrderedJson& value);

std::optional<int32_t> WholeNumber32(const OrderedJson& value);

// Parses a body whose value is an object. Errors: JSON, FIELD_TYPE.
absl::StatusOr<OrderedJson> ParseObject(std::string_view body);

// Adds a member without searching for its key. REQUIRES: the object has no member `key`.
void AddMember(std::string key, OrderedJson value, OrderedJson& object);

// Returns `text` as ToText would write it and a parser would read it back: bytes that are not UTF-8
// become U+FFFD. So two different texts may become the same key.
std::string ToKey(std::string text);

// Returns the JSON text. Bytes that are not UTF-8 become U+FFFD.
std::string ToText(const OrderedJson& json);

}  // namespace quire

#endif  // QUIRE_DEPLOY_GATEWAY_OPENAI_JSON_FIELDS_H_
