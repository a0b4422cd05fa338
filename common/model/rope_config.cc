#include "common/model/rope_config.h"

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/base/string_view.h"
#include "common/json/json.h"

namespace quire {
namespace {

// Range of original_max_position_embeddings.
constexpr IntRange kOriginalPositionsRange = {.min = 1, .max = kMaxPositionsLimit};

RopeScalingKind ParseRopeType(ConfigReader& reader) {
  std::optional<std::string> name = reader.OptionalString("rope_type");
  if (!name.has_value()) {
    name = reader.OptionalString("type");
  }
  if (!name.has_value() || *name == "default") {
    return RopeScalingKind::kNone;
  }
  if (*name == "linear") {
    return RopeScalingKind::kLinear;
  }
  if (*name == "llama3") {
    return RopeScalingKind::kLlama3;
  }
  reader.Fail("rope_type", "must be one of default, linear, llama3");
  return RopeScalingKind::kNone;
}

double RequiredNumber(ConfigReader& reader, std::string_view field, double min, double max) {
  std::optional<double> value = reader.OptionalNumber(field, min, max);
  if (!value.has_value()) {
    reader.Fail(field, "is required");
  }
  return value.value_or(min);
}

// Parses the object of rope_scaling or rope_parameters.
absl::Status ParseRopeObject(const Json& object,
                             const std::string& prefix,
                             int32_t max_position_embeddings,
                             RopeConfig& rope) {
  ConfigReader reader(object, "config.json", prefix);
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      reader.Fail(key, "rope parameters by layer type are not supported");
    }
  }
  rope.theta = reader.Number("rope_theta", 1.0, 1e12, rope.theta);
  rope.scaling = ParseRopeType(reader);
  if (reader.Number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
    reader.Fail("partial_rotary_factor", "must be 1");
  }
  if (rope.scaling != RopeScalingKind::kNone) {
    rope.factor = RequiredNumber(reader, "factor", 1.0, 1e6);
  }
  if (rope.scaling == RopeScalingKind::kLlama3) {
    rope.low_freq_factor = RequiredNumber(reader, "low_freq_factor", 1e-6, 1e6);
    rope.high_freq_factor = RequiredNumber(reader, "high_freq_factor", 1e-6, 1e6);
    rope.original_max_position_embeddings = reader.Int(
        "original_max_position_embeddings", kOriginalPositionsRange, max_position_embeddings);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      reader.Fail("high_freq_factor", "must be greater than low_freq_factor");
    }
  }
  return reader.status();
}

}  // namespace

absl::StatusOr<RopeConfig> ParseRope(ConfigReader& reader, int32_t max_position_embeddings) {
  RopeConfig rope;
  rope.theta = reader.Number("rope_theta", 1.0, 1e12, rope.theta);
  if (reader.Number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
    reader.Fail("partial_rotary_factor", "must be 1");
  }
  QUIRE_RETURN_IF_ERROR(reader.status());
  for (std::string_view field : {"rope_scaling", "rope_parameters"}) {
    const Json* object = reader.Find(field);
    if (object == nullptr || object->empty()) {
      continue;
    }
    if (!object->is_object()) {
      reader.Fail(field, "must be an object or null");
      return reader.status();
    }
    QUIRE_RETURN_IF_ERROR(
        ParseRopeObject(*object, absl::StrCat(ToAbsl(field), "."), max_position_embeddings, rope));
    break;
  }
  return rope;
}

}  // namespace quire
