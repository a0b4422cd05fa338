#include "common/model/config_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/string_view.h"

namespace quire {
namespace {

constexpr size_t kMaxTokenIds = 1024;

// Returns the value as an error message shows it: a number as digits, other values as their type.
std::string Shown(const Json& value) {
  return value.is_number() ? value.dump() : std::string(value.type_name());
}

}  // namespace

ConfigReader::ConfigReader(const Json& object,
                           std::string file,
                           std::string prefix,
                           FieldNames names)
    : object_(object),
      file_(std::move(file)),
      prefix_(std::move(prefix)),
      names_(std::move(names)) {
  if (!object_.is_object()) {
    const std::string field = prefix_.substr(0, prefix_.find_last_of('.'));
    status_ = InvalidArgument(
        "CONFIG",
        absl::StrCat(file_, ": ", field, field.empty() ? "" : ": ", "must be a JSON object"));
  }
}

bool ConfigReader::Has(std::string_view field) const {
  return object_.is_object() && object_.contains(field);
}

bool ConfigReader::IsNull(std::string_view field) const {
  return Has(field) && object_.find(field)->is_null();
}

const Json* ConfigReader::Find(std::string_view field) const {
  if (!Has(field)) {
    return nullptr;
  }
  const Json& value = *object_.find(field);
  return value.is_null() ? nullptr : &value;
}

int32_t ConfigReader::RequiredInt(std::string_view field, IntRange range) {
  const Json* value = Find(field);
  if (value == nullptr) {
    Fail(field, "is required");
    return range.min;
  }
  return CheckInt(field, *value, range).value_or(range.min);
}

std::optional<int32_t> ConfigReader::OptionalInt(std::string_view field, IntRange range) {
  const Json* value = Find(field);
  return value == nullptr ? std::nullopt : CheckInt(field, *value, range);
}

int32_t ConfigReader::Int(std::string_view field, IntRange range, int32_t fallback) {
  return OptionalInt(field, range).value_or(fallback);
}

std::optional<int32_t> ConfigReader::CheckInt(std::string_view field,
                                              const Json& value,
                                              IntRange range) {
  if (!value.is_number_integer()) {
    Fail(field, absl::StrCat("must be an integer (got ", Shown(value), ")"));
    return std::nullopt;
  }
  // An unsigned value above INT64_MAX would become negative in get<int64_t>.
  bool huge = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX};
  int64_t number = huge ? INT64_MAX : value.get<int64_t>();
  if (number < range.min || number > range.max) {
    Fail(field,
         absl::StrCat("must be in [", range.min, ", ", range.max, "] (got ", Shown(value), ")"));
    return std::nullopt;
  }
  return static_cast<int32_t>(number);
}

std::optional<double> ConfigReader::OptionalNumber(std::string_view field, double min, double max) {
  const Json* value = Find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_number()) {
    Fail(field, absl::StrCat("must be a number (got ", Shown(*value), ")"));
    return std::nullopt;
  }
  double number = value->get<double>();
  if (!std::isfinite(number) || number < min || number > max) {
    Fail(field, absl::StrCat("must be in [", min, ", ", max, "] (got ", Shown(*value), ")"));
    return std::nullopt;
  }
  return number;
}

double ConfigReader::Number(std::string_view field, double min, double max, double fallback) {
  return OptionalNumber(field, min, max).value_or(fallback);
}

std::optional<bool> ConfigReader::OptionalBool(std::string_view field) {
  const Json* value = Find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_boolean()) {
    Fail(field, absl::StrCat("must be true or false (got ", Shown(*value), ")"));
    return std::nullopt;
  }
  return value->get<bool>();
}

bool ConfigReader::Bool(std::string_view field, bool fallback) {
  return OptionalBool(field).value_or(fallback);
}

std::optional<std::string> ConfigReader::OptionalString(std::string_view field) {
  const Json* value = Find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    Fail(field, absl::StrCat("must be a string (got ", Shown(*value), ")"));
    return std::nullopt;
  }
  return value->get<std::string>();
}

std::vector<TokenId> ConfigReader::TokenIds(std::string_view field, int64_t limit) {
  const Json* value = Find(field);
  if (value == nullptr) {
    return {};
  }
  std::vector<TokenId> ids;
  const IntRange range = {.min = 0, .max = static_cast<int32_t>(limit - 1)};
  if (!value->is_array()) {
    ids.push_back(CheckInt(field, *value, range).value_or(0));
    return ids;
  }
  if (value->size() > kMaxTokenIds) {
    Fail(field,
         absl::StrCat("has too many entries (got ", value->size(), ", limit ", kMaxTokenIds, ")"));
    return {};
  }
  for (const Json& entry : *value) {
    TokenId id = CheckInt(field, entry, range).value_or(0);
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) {
      ids.push_back(id);
    }
  }
  return ids;
}

void ConfigReader::Fail(std::string_view field, std::string_view rule) {
  if (status_.ok()) {
    const auto name = names_.find(field);
    status_ = InvalidArgument("CONFIG",
                              absl::StrCat(file_,
                                           ": ",
                                           prefix_,
                                           name == names_.end() ? ToAbsl(field) : name->second,
                                           ": ",
                                           ToAbsl(rule)));
  }
}

}  // namespace quire
