#include "common/json/json.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/read_file.h"
#include "common/base/status_macros.h"

namespace quire {
namespace {

// Builds the value from the library's SAX events, and stops at the first fault. Json::parse with a
// callback would scan a whole array at the end of each object in that array, and cannot stop early.
class JsonBuilder {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  explicit JsonBuilder(const JsonLimits& limits) : limits_(limits) {}

  // The SAX events, under the library's names. Returning false stops the parser.
  bool null() { return Add(nullptr) != nullptr; }
  bool boolean(bool value) { return Add(value) != nullptr; }
  bool number_integer(number_integer_t value) { return Add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) { return Add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t& /*text*/) {
    return Add(value) != nullptr;
  }
  bool string(string_t& value) { return Add(std::move(value)) != nullptr; }
  bool binary(binary_t& /*value*/) { return Fail("not valid"); }  // JSON text has no such values
  bool start_object(size_t /*size*/) { return Open(Json::object()); }
  bool start_array(size_t /*size*/) { return Open(Json::array()); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }

  bool key(string_t& key) {
    auto& members = open_.back()->get_ref<Json::object_t&>();
    const auto [member, is_new] = members.emplace(std::move(key), nullptr);
    member_ = &member->second;
    return is_new || Fail("duplicate key");
  }

  bool parse_error(size_t position, const std::string& /*token*/, const Json::exception& /*e*/) {
    return Fail(absl::StrCat("not valid at byte ", position));
  }

  const std::string& error() const { return error_; }
  Json TakeRoot() { return std::move(root_); }

 private:
  // Adds the value. Returns its address, or null if there are too many values.
  Json* Add(Json value) {
    if (num_values_ == limits_.max_values) {
      Fail(absl::StrCat("has too many values (limit ", limits_.max_values, ")"));
      return nullptr;
    }
    ++num_values_;
    if (!open_.empty() && open_.back()->is_array()) {
      return &open_.back()->get_ref<Json::array_t&>().emplace_back(std::move(value));
    }
    Json* const place = open_.empty() ? &root_ : member_;
    *place = std::move(value);
    return place;
  }

  bool Open(Json container) {
    if (open_.size() == limits_.max_depth) {
      return Fail("nested too deep");
    }
    Json* const place = Add(std::move(container));
    open_.push_back(place);
    return place != nullptr;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  const JsonLimits limits_;
  int64_t num_values_ = 0;
  Json root_;
  // The containers that have not ended, innermost last. Only the innermost container grows, so the
  // pointers stay valid.
  std::vector<Json*> open_;
  Json* member_ = nullptr;  // the value of the key that was read last
  std::string error_;
};

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  JsonBuilder builder(limits);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return InvalidArgument("JSON", absl::StrCat("JSON: ", builder.error()));
  }
  return builder.TakeRoot();
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
