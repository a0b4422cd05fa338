#include "deploy/gateway/openai/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"

namespace quire {

JsonFields::JsonFields(OrderedJson& object, std::string path) : path_(std::move(path)) {
  auto& members = object.get_ref<OrderedJson::object_t&>();
  members_.reserve(members.size());
  for (auto& [key, value] : members) {
    members_.emplace(key, &value);
  }
}

void JsonFields::Fail(std::string_view reason, std::string_view name, std::string_view rule) {
  status_.Update(InvalidArgument(reason, absl::StrCat(path_, ToAbsl(name), ": ", ToAbsl(rule))));
}

OrderedJson* JsonFields::Any(std::string_view name) {
  const auto member = members_.find(name);
  const bool is_there = status_.ok() && member != members_.end() && !member->second->is_null();
  return is_there ? member->second : nullptr;
}

void JsonFields::Refuse(std::string_view name) {
  if (Any(name) != nullptr) {
    Fail("UNSUPPORTED", name, "is not supported by this server");
  }
}

OrderedJson* JsonFields::Object(std::string_view name) {
  OrderedJson* const value = Any(name);
  if (value == nullptr || value->is_object()) {
    return value;
  }
  Fail("FIELD_TYPE", name, "must be an object");
  return nullptr;
}

OrderedJson* JsonFields::Array(std::string_view name) {
  OrderedJson* const value = Any(name);
  if (value == nullptr || value->is_array()) {
    return value;
  }
  Fail("FIELD_TYPE", name, "must be an array");
  return nullptr;
}

std::optional<bool> JsonFields::Bool(std::string_view name) {
  const OrderedJson* const value = Any(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (value->is_boolean()) {
    return value->get<bool>();
  }
  Fail("FIELD_TYPE", name, "must be true or false");
  return std::nullopt;
}

std::optional<int64_t> JsonFields::Int64(std::string_view name) {
  const OrderedJson* const value = Any(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::optional<int64_t> number = WholeNumber(*value);
  if (!number.has_value()) {
    Fail("FIELD_TYPE", name, "must be an integer of 64 bits");
  }
  return number;
}

std::optional<int32_t> JsonFields::Int(std::string_view name) {
  const OrderedJson* const value = Any(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::optional<int32_t> number = WholeNumber32(*value);
  if (!number.has_value()) {
    Fail("FIELD_TYPE", name, "must be an integer of 32 bits");
  }
  return number;
}

std::optional<float> JsonFields::Number(std::string_view name) {
  const OrderedJson* const value = Any(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_number()) {
    Fail("FIELD_TYPE", name, "must be a number");
    return std::nullopt;
  }
  const auto number = value->get<double>();
  if (std::abs(number) > std::numeric_limits<float>::max()) {
    Fail("FIELD_RANGE", name, "is too large");
    return std::nullopt;
  }
  return static_cast<float>(number);
}

std::optional<std::string> JsonFields::Text(std::string_view name) {
  const OrderedJson* const value = Any(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (value->is_string()) {
    return value->get<std::string>();
  }
  Fail("FIELD_TYPE", name, "must be a string");
  return std::nullopt;
}

std::vector<int32_t> JsonFields::Ints(std::string_view name, size_t max_items) {
  const OrderedJson* const array = Array(name);
  if (array == nullptr) {
    return {};
  }
  if (array->size() > max_items) {
    Fail("FIELD_RANGE", name, absl::StrCat("has too many items (limit ", max_items, ")"));
    return {};
  }
  std::vector<int32_t> numbers;
  numbers.reserve(array->size());
  for (const OrderedJson& item : *array) {
    const std::optional<int32_t> number = WholeNumber32(item);
    if (!number.has_value()) {
      Fail("FIELD_TYPE", name, "must hold integers of 32 bits only");
      return {};
    }
    numbers.push_back(*number);
  }
  return numbers;
}

std::optional<int64_t> WholeNumber(const OrderedJson& value) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  if (value.is_number_unsigned()) {  // the library's type of integers from 0 on
    const auto number = value.get<uint64_t>();
    return number <= uint64_t{kMax} ? std::make_optional(static_cast<int64_t>(number))
                                    : std::nullopt;
  }
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  constexpr double kMaxExact = 1LL << 53;  // above, neighbouring doubles differ by more than one
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::abs(number) <= kMaxExact && number == std::trunc(number)) {
      return static_cast<int64_t>(number);
    }
  }
  return std::nullopt;
}

std::optional<int32_t> WholeNumber32(const OrderedJson& value) {
  const std::optional<int64_t> number = WholeNumber(value);
  const bool fits = number.has_value() && *number >= std::numeric_limits<int32_t>::min() &&
                    *number <= std::numeric_limits<int32_t>::max();
  return fits ? std::make_optional(static_cast<int32_t>(*number)) : std::nullopt;
}

absl::StatusOr<OrderedJson> ParseObject(std::string_view body) {
  QUIRE_ASSIGN_OR_RETURN(OrderedJson json, ParseOrderedJson(body));
  if (!json.is_object()) {
    return InvalidArgument("FIELD_TYPE", "body: must be a JSON object");
  }
  return json;
}

void AddMember(std::string key, OrderedJson value, OrderedJson& object) {
  object.get_ref<OrderedJson::object_t&>().emplace_back(std::move(key), std::move(value));
}

std::string ToKey(std::string text) {
  const bool is_ascii = std::ranges::all_of(text, [](char c) { return (c & 0x80) == 0; });
  if (is_ascii) {
    return text;
  }
  return OrderedJson::parse(ToText(OrderedJson(std::move(text)))).get<std::string>();
}

std::string ToText(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace quire
