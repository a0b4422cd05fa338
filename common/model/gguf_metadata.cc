#include "common/model/gguf_metadata.h"

#include <array>
#include <bit>

#include "absl/strings/str_cat.h"

#include "common/base/error.h"
#include "common/base/shortest_decimal.h"
#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/model/load_error.h"

namespace quire {
namespace {

struct ValueTypeInfo {
  std::string_view name;
  int64_t bytes;
};

// By the type's number.
constexpr std::array<ValueTypeInfo, 13> kValueTypes = {{{"uint8", 1},
                                                        {"int8", 1},
                                                        {"uint16", 2},
                                                        {"int16", 2},
                                                        {"uint32", 4},
                                                        {"int32", 4},
                                                        {"float32", 4},
                                                        {"bool", 1},
                                                        {"string", 0},
                                                        {"array", 0},
                                                        {"uint64", 8},
                                                        {"int64", 8},
                                                        {"float64", 8}}};

const ValueTypeInfo& InfoOf(GgufValueType type) { return kValueTypes[static_cast<size_t>(type)]; }

std::string TypeText(const GgufValue& value) {
  const std::string element(NameOf(value.element_type));
  return value.is_array() ? absl::StrCat("array of ", element) : element;
}

// Returns element i, zero-extended. REQUIRES: the elements are numbers.
uint64_t BitsOf(const GgufValue& value, int64_t i) {
  const auto size = static_cast<size_t>(SizeOf(value.element_type));
  uint64_t bits = 0;
  for (size_t byte = 0; byte < size; ++byte) {
    bits |= static_cast<uint64_t>(value.bytes[static_cast<size_t>(i) * size + byte]) << (8 * byte);
  }
  return bits;
}

bool IsSigned(GgufValueType type) {
  return type == GgufValueType::kInt8 || type == GgufValueType::kInt16 ||
         type == GgufValueType::kInt32 || type == GgufValueType::kInt64;
}

int64_t SignExtended(uint64_t bits, int64_t size_bytes) {
  const int shift = static_cast<int>(64 - 8 * size_bytes);
  return static_cast<int64_t>(bits << shift) >> shift;
}

double FloatOf(const GgufValue& value, int64_t i) {
  const uint64_t bits = BitsOf(value, i);
  return value.element_type == GgufValueType::kFloat64
             ? std::bit_cast<double>(bits)
             : double{std::bit_cast<float>(static_cast<uint32_t>(bits))};
}

std::string_view TextOf(const GgufValue& value) {
  return {reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size()};
}

// Returns the rule that element i breaks: "must be in [1, 2] (got 3)".
std::string RangeRule(const GgufValue& value,
                      int64_t i,
                      std::string_view min,
                      std::string_view max,
                      std::string_view got) {
  return absl::StrCat(value.is_array() ? absl::StrCat("element ", i, " ") : "",
                      "must be in [",
                      ToAbsl(min),
                      ", ",
                      ToAbsl(max),
                      "] (got ",
                      ToAbsl(got),
                      ")");
}

// An element, or the rule that it breaks. The rule is empty if the element is in the range.
struct IntegerOrRule {
  int64_t integer = 0;
  std::string rule;
};

IntegerOrRule IntegerOf(const GgufValue& value, int64_t i, int64_t min, int64_t max) {
  const uint64_t bits = BitsOf(value, i);
  const bool is_signed = IsSigned(value.element_type);
  const int64_t integer =
      is_signed ? SignExtended(bits, SizeOf(value.element_type)) : static_cast<int64_t>(bits);
  const bool fits = is_signed || bits <= uint64_t{INT64_MAX};
  if (fits && integer >= min && integer <= max) {
    return {.integer = integer};
  }
  const std::string got = fits ? absl::StrCat(integer) : absl::StrCat(bits);
  return {.rule = RangeRule(value, i, absl::StrCat(min), absl::StrCat(max), got)};
}

// Like IntegerOrRule.
struct FloatOrRule {
  double number = 0;
  std::string rule;
};

FloatOrRule FloatInRange(const GgufValue& value, int64_t i, double min, double max) {
  const double number = FloatOf(value, i);
  if (number >= min && number <= max) {
    return {.number = number};
  }
  return {.rule = RangeRule(
              value, i, ShortestDecimal(min), ShortestDecimal(max), ShortestDecimal(number))};
}

}  // namespace

std::string_view NameOf(GgufValueType type) { return InfoOf(type).name; }

std::optional<GgufValueType> GgufValueTypeFromNumber(uint32_t number) {
  return number < kValueTypes.size()
             ? std::optional<GgufValueType>(static_cast<GgufValueType>(number))
             : std::nullopt;
}

int64_t SizeOf(GgufValueType type) { return InfoOf(type).bytes; }

bool GgufMetadata::Add(std::string key, GgufValue&& value) {
  return values_.try_emplace(std::move(key), std::move(value)).second;
}

const GgufValue* GgufMetadata::Find(std::string_view key) const {
  auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

absl::Status GgufMetadata::KeyError(std::string_view key, std::string_view rule) const {
  return TensorError(file_, key, rule);
}

absl::StatusOr<const GgufValue*> GgufMetadata::Typed(std::string_view key,
                                                     Kind kind,
                                                     bool is_array) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return Error(
        absl::StatusCode::kNotFound,
        "MODEL_FILE",
        absl::StrCat("load: ", PrintableName(file_), ": ", PrintableName(key), ": is missing"));
  }
  Kind kind_of_value = Kind::kInteger;
  switch (value->element_type) {
    case GgufValueType::kFloat32:
    case GgufValueType::kFloat64:
      kind_of_value = Kind::kFloat;
      break;
    case GgufValueType::kBool:
      kind_of_value = Kind::kBool;
      break;
    case GgufValueType::kString:
      kind_of_value = Kind::kString;
      break;
    default:
      break;
  }
  if (kind_of_value == kind && value->is_array() == is_array) {
    return value;
  }
  constexpr std::array<std::string_view, 4> kOne = {"an integer", "a float", "a bool", "a string"};
  constexpr std::array<std::string_view, 4> kMany = {
      "an array of integers", "an array of floats", "an array of bools", "an array of strings"};
  return KeyError(key,
                  absl::StrCat("must be ",
                               ToAbsl((is_array ? kMany : kOne)[static_cast<size_t>(kind)]),
                               " (got ",
                               TypeText(*value),
                               ")"));
}

absl::StatusOr<std::string_view> GgufMetadata::GetString(std::string_view key) const {
  QUIRE_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, Kind::kString, false));
  return TextOf(*value);
}

absl::StatusOr<int64_t> GgufMetadata::GetInteger(std::string_view key,
                                                 int64_t min,
                                                 int64_t max) const {
  QUIRE_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, Kind::kInteger, false));
  IntegerOrRule result = IntegerOf(*value, 0, min, max);
  if (!result.rule.empty()) {
    return KeyError(key, result.rule);
  }
  return result.integer;
}

absl::StatusOr<double> GgufMetadata::GetFloat(std::string_view key, double min, double max) const {
  QUIRE_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, Kind::kFloat, false));
  FloatOrRule result = FloatInRange(*value, 0, min, max);
  if (!result.rule.empty()) {
    return KeyError(key, result.rule);
  }
  return result.number;
}

absl::StatusOr<bool> GgufMetadata::GetBool(std::string_view key) const {
  QUIRE_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, Kind::kBool, false));
  return BitsOf(*value, 0) != 0;
}

absl::StatusOr<std::vector<std::string_view>> GgufMetadata::GetStrings(std::string_view key) const {
  QUIRE_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, Kind::kString, true));
  const std::string_view text = TextOf(*value);
  std::vector<std::string_view> strings;
  strings.reserve(value->ends.size());
  size_t begin = 0;
  for (uint32_t end : value->ends) {
    strings.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return strings;
}

absl::StatusOr<std::vector<int64_t>> GgufMetadata::GetIntegers(std::string_view key,
                                                               int64_t min,
                                                               int64_t max) const {
  QUIRE_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, Kind::kInteger, true));
  std::vector<int64_t> integers;
  integers.reserve(static_cast<size_t>(value->num_elements));
  for (int64_t i = 0; i < value->num_elements; ++i) {
    IntegerOrRule result = IntegerOf(*value, i, min, max);
    if (!result.rule.empty()) {
      return KeyError(key, result.rule);
    }
    integers.push_back(result.integer);
  }
  return integers;
}

absl::StatusOr<std::vector<double>> GgufMetadata::GetFloats(std::string_view key,
                                                            double min,
                                                            double max) const {
  QUIRE_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, Kind::kFloat, true));
  std::vector<double> numbers;
  numbers.reserve(static_cast<size_t>(value->num_elements));
  for (int64_t i = 0; i < value->num_elements; ++i) {
    FloatOrRule result = FloatInRange(*value, i, min, max);
    if (!result.rule.empty()) {
      return KeyError(key, result.rule);
    }
    numbers.push_back(result.number);
  }
  return numbers;
}

absl::StatusOr<std::vector<bool>> GgufMetadata::GetBools(std::string_view key) const {
  QUIRE_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, Kind::kBool, true));
  std::vector<bool> bools;
  bools.reserve(static_cast<size_t>(value->num_elements));
  for (int64_t i = 0; i < value->num_elements; ++i) {
    bools.push_back(BitsOf(*value, i) != 0);
  }
  return bools;
}

}  // namespace quire
