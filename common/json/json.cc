#include "common/json/json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/read_file.h"
#include "common/base/status_macros.h"

namespace quire {
namespace {

// Builds a Json or OrderedJson from the library's SAX events, and stops at the first fault.
// Json::parse with a callback cannot stop early, and scans a whole array again after each object in
// it.
template <typename Value>
class JsonBuilder {
 public:
  using number_integer_t = typename Value::number_integer_t;
  using number_unsigned_t = typename Value::number_unsigned_t;
  using number_float_t = typename Value::number_float_t;
  using string_t = typename Value::string_t;
  using binary_t = typename Value::binary_t;

  explicit JsonBuilder(const JsonLimits& limits) : limits_(limits) {}

  // The SAX events, under the library's names. Returning false stops the parser.
  bool null() { return Add(nullptr); }
  bool boolean(bool value) { return Add(value); }
  bool number_integer(number_integer_t value) { return Add(value); }
  bool number_unsigned(number_unsigned_t value) { return Add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) { return Add(value); }
  bool string(string_t& value) { return Add(std::move(value)); }
  bool binary(binary_t& /*value*/) { return Fail("not valid"); }  // JSON text has no such values
  bool start_object(size_t /*size*/) { return Open(Value::object()); }
  bool start_array(size_t /*size*/) { return Open(Value::array()); }
  bool end_array() { return Close(); }

  bool key(string_t& key) {
    open_.back().members.emplace_back(std::move(key), nullptr);
    return true;
  }

  bool end_object() {
    Container& object = open_.back();
    return PutMembers(object.members, object.value) ? Close() : Fail("duplicate key");
  }

  bool parse_error(size_t position, const std::string& /*token*/, const Json::exception& /*e*/) {
    return Fail(absl::StrCat("not valid at byte ", position));
  }

  const std::string& error() const { return error_; }
  Value TakeRoot() { return std::move(root_); }

 private:
  using Members = std::vector<std::pair<std::string, Value>>;

  // An object or array whose end has not been parsed yet. Members are put into an object only at
  // the end of the object, because an OrderedJson copies all its members when it grows.
  struct Container {
    Value value;
    Members members;
  };

  // Returns false if a key occurs twice.
  static bool PutMembers(Members& members, Json& object) {
    auto& map = object.get_ref<Json::object_t&>();
    for (auto& [key, value] : members) {
      if (!map.emplace(std::move(key), std::move(value)).second) {
        return false;
      }
    }
    return true;
  }

  static bool PutMembers(Members& members, OrderedJson& object) {
    std::vector<std::string_view> keys;
    keys.reserve(members.size());
    for (const auto& [key, value] : members) {
      keys.push_back(key);
    }
    std::sort(keys.begin(), keys.end());
    if (std::adjacent_find(keys.begin(), keys.end()) != keys.end()) {
      return false;
    }
    auto& list = object.get_ref<OrderedJson::object_t&>();
    list.reserve(members.size());
    for (auto& [key, value] : members) {
      list.emplace_back(std::move(key), std::move(value));
    }
    return true;
  }

  // Returns false if there are too many values.
  bool Count() {
    return ++num_values_ <= limits_.max_values ||
           Fail(absl::StrCat("has too many values (limit ", limits_.max_values, ")"));
  }

  void Put(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.push_back(std::move(value));
    } else {
      open_.back().members.back().second = std::move(value);
    }
  }

  bool Add(Value value) {
    Put(std::move(value));
    return Count();
  }

  bool Open(Value container) {
    if (open_.size() == limits_.max_depth) {
      return Fail("nested too deep");
    }
    open_.push_back({.value = std::move(container), .members = {}});
    return Count();
  }

  bool Close() {
    Value ended = std::move(open_.back().value);
    open_.pop_back();
    Put(std::move(ended));
    return true;
  }

  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  const JsonLimits limits_;
  int64_t num_values_ = 0;
  Value root_;
  std::vector<Container> open_;  // innermost last
  std::string error_;
};

template <typename Value>
absl::StatusOr<Value> Parse(std::string_view text, const JsonLimits& limits) {
  JsonBuilder<Value> builder(limits);
  if (!Value::sax_parse(text.begin(), text.end(), &builder)) {
    return InvalidArgument("JSON", absl::StrCat("JSON: ", builder.error()));
  }
  return builder.TakeRoot();
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  return Parse<Json>(text, limits);
}

absl::StatusOr<OrderedJson> ParseOrderedJson(std::string_view text, const JsonLimits& limits) {
  return Parse<OrderedJson>(text, limits);
}

absl::StatusOr<Json> ParseJsonFile(const std::string& path, int64_t max_bytes) {
  QUIRE_ASSIGN_OR_RETURN(std::string text, ReadFile(path, max_bytes));
  absl::StatusOr<Json> json = ParseJson(text);
  if (!json.ok()) {
    return InvalidArgument("JSON", absl::StrCat(path, ": ", json.status().message()));
  }
  return json;
}

}  // namespace quire
